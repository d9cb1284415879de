"""Half a minute of the random soak, and that it notices a hang."""

import sys
from pathlib import Path

from support.commands import run

SOAK = Path(__file__).resolve().parent / "soak.py"


def test_soak(capsys):
    finished = run([sys.executable, SOAK, "--seconds", 30])
    assert finished.returncode == 0, finished.output[-8000:]
    with capsys.disabled():
        print("\n" + finished.output.splitlines()[-1])


def test_hang_ends_with_stacks():
    finished = run([sys.executable, SOAK, "--seed", 1, "--round", 0, "--bound", 5, "--stall"])
    assert finished.returncode == 1, finished.output
    assert "most recent call first" in finished.output and "play" in finished.output
    assert "soak: seed 1 FAILED" in finished.output
