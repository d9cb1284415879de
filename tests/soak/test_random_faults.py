"""A few random faults (60 s of them in `make test-all`, 300 in `make faults`)."""

import sys
from pathlib import Path

import pytest
from support.commands import run
from support.parameters import slow

FAULTS = Path(__file__).resolve().parent / "faults.py"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seconds", [15, slow(60)])
def test_faults(seconds):
    finished = run([sys.executable, FAULTS, "--trials", 10_000, "--seconds", seconds])
    assert finished.returncode == 0, finished.output[-8000:]
    print(finished.output)
