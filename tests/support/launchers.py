"""Starts a script on two ranks with each launcher, and separates the output of the ranks.

run_script(LAUNCHERS["torchrun"], path) returns one RankOutput per rank. A launcher is a row of
LAUNCHERS: a function that gets a command line without the interpreter, a free port and a directory.
It writes <rank>.stdout and <rank>.stderr there and returns the exit codes. It sets no variable
that the real launcher sets itself.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BOUND_S = 100
SIZE = 2

# Prefixes of variables that launchers set. Those of the launcher of the tests are not passed on.
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "PMI", "MPI_", "OMPI_", "SLURM_", "MASTER_")
#: With it, a line and its newline are two writes, and launchers mix writes of several ranks.
UNBUFFERED = "PYTHONUNBUFFERED"

Launcher = Callable[[list[str], int, Path], list[int | None]]


class RankOutput(NamedTuple):
    """The output of a rank that exited with 0."""

    rank: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def clean_environment(**more: str) -> dict[str, str]:
    foreign = (*RANK_VARIABLES, UNBUFFERED)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {"OMP_NUM_THREADS": "1", **kept, **more}


@contextlib.contextmanager
def ended(process: subprocess.Popen):
    """Leaving the block ends the process: SIGTERM first, so that torchrun ends its ranks too."""
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
    """The exit code; None if the process still runs at the deadline."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(0.1, deadline - time.monotonic()))
    return None


def start(words: list[str], logs: Path, name: str, **variables: str) -> subprocess.Popen:
    with (logs / f"{name}.stdout").open("w") as out, (logs / f"{name}.stderr").open("w") as err:
        return subprocess.Popen(
            words,
            env=clean_environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


def wait_for_all(processes: list[subprocess.Popen]) -> list[int | None]:
    deadline = time.monotonic() + BOUND_S
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.enter_context(ended(process))
        return [wait(process, deadline) for process in processes]


# ---- launchers that set rank and size


def by_torchrun(agents: int) -> Launcher:
    """`agents` torchrun agents, one for each host, share the ranks."""

    def launch(command: list[str], port: int, logs: Path) -> list[int | None]:
        def agent(node: int) -> subprocess.Popen:
            node_options = [f"--nnodes={agents}", f"--node-rank={node}"]
            share = [f"--nproc-per-node={SIZE // agents}", f"--master-port={port}"]
            master = ["--master-addr=127.0.0.1"]
            redirect = ["--redirects=3", f"--log-dir={logs / 'ranks' / str(node)}"]
            options = [*node_options, *share, *master, *redirect]
            words = [sys.executable, "-m", "torch.distributed.run", *options, *command]
            return start(words, logs, f"agent{node}")

        codes = wait_for_all([agent(node) for node in range(agents)])
        for log in logs.glob("ranks/*/*/attempt_0/*/std*.log"):
            node, local_rank = int(log.relative_to(logs / "ranks").parts[0]), int(log.parent.name)
            log.rename(logs / f"{node * (SIZE // agents) + local_rank}.{log.stem}")
        return codes

    return launch


def by_hand(rank_name: str, size_name: str) -> Launcher:
    """Starts one process per rank, with rank and size in these variables."""

    def launch(command: list[str], port: int, logs: Path) -> list[int | None]:
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

        def rank(number: int) -> subprocess.Popen:
            own = {rank_name: str(number), size_name: str(SIZE)}
            return start([sys.executable, *command], logs, str(number), **own, **master)

        return wait_for_all([rank(number) for number in range(SIZE)])

    return launch


def by_python(command: list[str], port: int, logs: Path) -> list[int | None]:
    """Uses no launcher: starts one process, without variables."""
    return wait_for_all([start([sys.executable, *command], logs, "0")])


# ---- launchers that label the output of ranks

HYDRA_LABEL = re.compile(r"\[(\d+)\] ?(.*)")
SLURM_LABEL = re.compile(r"(\d+): ?(.*)")

MPICH = "mpiexec.hydra"
INTEL_MPI = str(Path(sys.prefix) / "intel-mpi/bin/mpiexec.hydra")
OPEN_MPI = "mpirun.openmpi"
TORCH_CCL = str(Path(sys.executable).parent / "torch-ccl")
#: Open MPI refuses more ranks than cores, and root, without these.
OPEN_MPI_OPTIONS = ("--oversubscribe", "--allow-run-as-root")


def split_by_label(text: str, label: re.Pattern) -> dict[str, str]:
    """The output of each rank; lines without a label are under "launcher"."""
    lines = defaultdict(str)
    for line in text.splitlines():
        match = label.fullmatch(line)
        rank, output = match.groups() if match else ("launcher", line)
        lines[rank] += output + "\n"
    return lines


def by_labels(words: list[str], label: re.Pattern, **environment: str) -> Launcher:
    """`words` precede the command line of a rank."""

    def launch(command: list[str], port: int, logs: Path) -> list[int | None]:
        codes = wait_for_all([start([*words, *command], logs, "all", **environment)])
        for stream in ("stdout", "stderr"):
            path = logs / f"all.{stream}"
            output = split_by_label(path.read_text(), label)
            for name in {*output, *map(str, range(SIZE))}:
                (logs / f"{name}.{stream}").write_text(output[name])
            path.unlink()
        return codes

    return launch


def by_open_mpi(command: list[str], port: int, logs: Path) -> list[int | None]:
    """Reads the file that Open MPI writes for each rank: its labels stand inside of lines."""
    options = [*OPEN_MPI_OPTIONS, "--output-filename", str(logs / "ranks"), "-n", str(SIZE)]
    codes = wait_for_all([start([OPEN_MPI, *options, sys.executable, *command], logs, "all")])
    for log in logs.glob("ranks/1/rank.*/std*"):
        log.rename(logs / f"{log.parent.suffix[1:]}.{log.name}")
    return codes


LAUNCHERS: dict[str, Launcher] = {
    "torchrun": by_torchrun(1),
    "torchrun, 2 agents": by_torchrun(2),
    "by hand": by_hand("RANK", "WORLD_SIZE"),
    "hydra's variables": by_hand("PMI_RANK", "PMI_SIZE"),
    "MPICH": by_labels([MPICH, "-l", "-n", str(SIZE), sys.executable], HYDRA_LABEL),
    "Intel MPI": by_labels([INTEL_MPI, "-l", "-n", str(SIZE), sys.executable], HYDRA_LABEL),
    "Open MPI": by_open_mpi,
    "torch-ccl run": by_labels([TORCH_CCL, "run", "-n", str(SIZE)], HYDRA_LABEL),
}


def run_script(
    launcher: Launcher, script: Path, *args: str, port: int | None = None
) -> list[RankOutput]:
    """Every rank must exit with 0, within BOUND_S."""
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        codes = launcher([str(script), *args], port or free_port(), logs)
        outputs = {path.name: path.read_text() for path in sorted(logs.glob("*.std*"))}
    if any(code != 0 for code in codes):
        raise AssertionError(f"exit codes {codes}\n" + "\n".join(filter(None, outputs.values())))
    ranks = range(1 if launcher is by_python else SIZE)
    return [RankOutput(r, outputs[f"{r}.stdout"], outputs[f"{r}.stderr"]) for r in ranks]


def fixed_port(text: str) -> int | None:
    """The port that a script sets itself; a launcher that opens a port must use the same."""
    match = re.search(r"MASTER_PORT\W+(\d+)", text)
    return int(match[1]) if match else None
