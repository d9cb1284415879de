"""Some random faults (15 s in `make test`, 60 s in `make test-all`, 300 in `make faults`)."""

import os
import platform
import sys
from pathlib import Path

import pytest
from support.commands import run
from support.parameters import slow

FAULTS = Path(__file__).resolve().parent / "faults.py"
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the harness sets the trap flag of x86-64"
)


def run_faults(*options) -> None:
    finished = run([sys.executable, FAULTS, "--trials", 10_000, *options])
    print(finished.output)
    assert finished.returncode == 0, finished.output[-8000:]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [15, slow(40)])
def test_faults(seconds):
    # One seed, so that a failure can be repeated; `make faults` draws another one each time.
    run_faults("--seconds", seconds, "--seed", 1002)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_faults_over_hosts():
    run_faults("--seconds", 20, "--hosts")
