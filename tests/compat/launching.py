"""Starts a script on two ranks in the ways its users do, and keeps the ranks' outputs apart.

run_script("torchrun", path) returns one Finished per rank. A way is one row of WAYS.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

BOUND_S = 100
SIZE = 2

# What a launcher would set; ours must not be those of whoever runs the tests.
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_", "PMI_", "MPI_", "OMPI_", "SLURM_", "MASTER_")  # beginnings


class Finished(NamedTuple):
    """One rank that has ended well: what it printed."""

    rank: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PLACE)}
    return {"OMP_NUM_THREADS": "1", **kept, **more}


@contextlib.contextmanager
def ended(process: subprocess.Popen):
    """When the block is left the process has ended; torchrun is asked, to end its ranks too."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        process.kill()
        process.wait()


def wait(process: subprocess.Popen, deadline: float) -> int | None:
    """The exit code; None if it has not ended in time."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(0.1, deadline - time.monotonic()))
    return None


def start(command: list[str], logs: Path, name: str, **place: str) -> subprocess.Popen:
    with (logs / f"{name}.stdout").open("w") as out, (logs / f"{name}.stderr").open("w") as err:
        return subprocess.Popen(
            [sys.executable, *command], env=clean_environment(**place), stdout=out, stderr=err
        )


def by_torchrun(command: list[str], port: int, logs: Path) -> list[int | None]:
    options = [f"--nproc-per-node={SIZE}", f"--master-port={port}"]
    redirect = ["--redirects=3", f"--log-dir={logs / 'ranks'}"]
    torchrun = ["-m", "torch.distributed.run", *options, *redirect, *command]
    with ended(start(torchrun, logs, "torchrun")) as process:
        code = wait(process, time.monotonic() + BOUND_S)
    for log in logs.glob("ranks/*/attempt_0/*/std*.log"):
        log.rename(logs / f"{log.parent.name}.{log.stem}")
    return [code] * SIZE


def by_hand(rank_name: str, size_name: str):
    """One process per rank, each told its place by these variables."""

    def launch(command: list[str], port: int, logs: Path) -> list[int | None]:
        deadline = time.monotonic() + BOUND_S
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with contextlib.ExitStack() as stack:
            ranks = []
            for rank in range(SIZE):
                place = {rank_name: str(rank), size_name: str(SIZE)}
                process = start(command, logs, str(rank), **place, **master)
                ranks.append(stack.enter_context(ended(process)))
            return [wait(process, deadline) for process in ranks]

    return launch


WAYS = {
    "torchrun": by_torchrun,
    "by hand": by_hand("RANK", "WORLD_SIZE"),
    "hydra's variables": by_hand("PMI_RANK", "PMI_SIZE"),
}


def run_script(way: str, script: Path, *args: str, port: int | None = None) -> list[Finished]:
    """Every rank must end well, within BOUND_S."""
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        codes = WAYS[way]([str(script), *args], port or free_port(), logs)
        said = {path.name: path.read_text() for path in sorted(logs.glob("*.std*"))}
    if codes != [0] * SIZE:
        raise AssertionError(f"exit codes {codes}\n" + "\n".join(filter(None, said.values())))
    return [Finished(r, said[f"{r}.stdout"], said[f"{r}.stderr"]) for r in range(SIZE)]
