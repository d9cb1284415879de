"""Runs the compiled loop of a library on its ranks and reads the times that it prints."""

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.peers.libraries import Library, PeerError, error_line
from torch_ccl.cli.bench.ranks import REQUEST_TIMEOUT_S
from torch_ccl.cli.bench.timing import WARM_UP


def wait_for_exit(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Exit codes. Blocks instead of polling: the cores belong to the ranks."""

    def stop() -> None:
        for process in processes:
            process.terminate()

    timeout = threading.Timer(REQUEST_TIMEOUT_S, stop)
    timeout.start()
    try:
        return [process.wait() for process in processes]
    finally:
        timeout.cancel()
        stop()


def run_ranks(library: Library, ranks: int, arguments: list[str], directory: Path) -> list[int]:
    """Exit codes; the output of all ranks is in the files `out` and `err` of the directory."""
    with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
        processes = [
            subprocess.Popen(
                [*command, *arguments],
                env={**os.environ, **extra},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            for command, extra in library.commands(ranks)
        ]
        return wait_for_exit(processes)


def time_operation(library: Library, cases: list[Case]) -> dict[Case, list[float]]:
    """Microseconds of every iteration of each case, the maximum over the ranks.

    The cases have the same operation and number of ranks.
    """
    op, ranks = cases[0].op, cases[0].ranks
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # not on a disk
    with tempfile.TemporaryDirectory(dir=memory) as name:
        directory = Path(name)
        sizes = [f"{case.bytes}:{case.iterations}" for case in cases]
        arguments = [str(directory / "shared"), op, str(WARM_UP), *sizes]
        codes = run_ranks(library, ranks, arguments, directory)
        if any(codes):
            line = error_line((directory / "err").read_text(errors="replace"))
            raise PeerError(
                f"{library.name}: {op} on {ranks} ranks failed (exit codes {codes}): {line}"
            )
        lines = (directory / "out").read_text().splitlines()
        times_us = {result["bytes"]: result["us"] for result in map(json.loads, lines)}
        return {case: times_us[case.bytes] for case in cases}
