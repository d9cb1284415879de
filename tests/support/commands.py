"""Paths of the repository and of the build, and functions that run commands."""

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_DIR = ROOT / os.environ.get("TCCL_BUILD_DIR", "build/release")


def emulator() -> list[str]:
    """The command that runs programs of BUILD_DIR if they were compiled for another architecture,
    else nothing: `[*EMULATOR, program]`."""
    cache = BUILD_DIR / "CMakeCache.txt"
    text = cache.read_text() if cache.exists() else ""
    found = re.search(r"^CMAKE_CROSSCOMPILING_EMULATOR:\w+=(.+)$", text, re.M)
    return found[1].split(";") if found else []


EMULATOR = emulator()


@dataclass
class CommandResult:
    returncode: int
    output: str


def run(command, **options) -> CommandResult:
    """Runs a command to completion; `output` is stdout and stderr together. Processes that the
    command leaves in its process group are killed, also if the test times out."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
        **options,
    )
    try:
        output, _ = process.communicate()
    finally:
        kill_group(process.pid)
        process.wait()
    return CommandResult(process.returncode, output)


def shell(script, *arguments, **options) -> str:
    """Returns the output of a bash script; its exit code must be 0."""
    result = run(["bash", "-euc", script, "bash", *arguments], **options)
    assert result.returncode == 0, result.output
    return result.output


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
