"""`make demo`, and that its check can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


def run_demo(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(DEMO), *args], capture_output=True, text=True, timeout=100
    )


def test_demo():
    done = run_demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 5313 differ" in done.stdout and "All checks passed" in done.stdout
    assert "step 200/200" in done.stdout
    assert not done.stderr


@pytest.mark.slow
def test_demo_without_allreduce_fails():
    done = run_demo("--without-allreduce")
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.endswith("FAILED")]
    assert len(failed) == 3, (
        done.stdout
    )  # both comparisons of the ranks, and the one with one process
    assert done.stdout.splitlines()[-1].startswith("FAILED: weights of both ranks")
