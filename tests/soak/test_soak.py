"""A short random soak (30 s in `make test-all`), and its detection of a hang."""

import sys
from pathlib import Path

import pytest
from support.commands import run
from support.parameters import slow

SOAK = Path(__file__).resolve().parent / "soak.py"


@pytest.mark.parametrize("seconds", [2, slow(30)])
def test_soak(seconds):
    finished = run([sys.executable, SOAK, "--seconds", seconds])
    assert finished.returncode == 0, finished.output[-8000:]
    print(finished.output.splitlines()[-1])


def test_hang_ends_with_stacks():
    finished = run([sys.executable, SOAK, "--seed", 1, "--round", 0, "--bound", 3, "--stall"])
    assert finished.returncode == 1, finished.output
    assert "most recent call first" in finished.output and "play" in finished.output
    assert "soak: seed 1 FAILED" in finished.output
