"""Where the built programs are and how tests run them."""

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_DIR = ROOT / os.environ.get("TCCL_BUILD_DIR", "build/release")


@dataclass
class Finished:
    returncode: int
    output: str


def run(command, **options) -> Finished:
    """Runs a command to its end; stdout and stderr are joined. When the test ends, by timeout too,
    so do all processes that the command left behind in its session."""
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
    return Finished(process.returncode, output)


def shell(script, *arguments, **options) -> str:
    """What a script of bash prints; it must end well."""
    result = run(["bash", "-euc", script, "bash", *arguments], **options)
    assert result.returncode == 0, result.output
    return result.output


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
