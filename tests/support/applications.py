"""The programs of tests/applications: how each is started on Gloo and on ccl, and its checks.

finished(PROGRAMS[0], "ccl") returns the report that the program printed (training_report.py).
Every program has a time limit, and its processes are killed at the end.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import ROOT
from support.launchers import clean_environment, free_port

ENVIRONMENT = ROOT / ".venv/applications"
PROGRAMS_DIR = ROOT / "tests/applications/programs"
PYTHON = ENVIRONMENT / "bin/python"
EXTENSIONS = ENVIRONMENT / "torch_extensions"  # of DeepSpeed, compiled by tools/setup.sh
BOUND_S = 300
KILL_S = 10
LOSS_TOLERANCE = 1e-5
NOT_OURS = "AssertionError: the default group's CPU backend is ProcessGroupGloo"

# Variables that choose a backend are not inherited from the caller.
CHOICES = ("CCL_", "APPLICATION_", "PROCESS_GROUP_BACKEND", "DIST_BACKEND", "ACCELERATE_", "DS_")


# ---- how the programs are started


def torchrun(script: Path, scratch: Path) -> list[str | Path]:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [PYTHON, *words, script]


def accelerate_launch(script: Path, scratch: Path) -> list[str | Path]:
    """On CPUs accelerate starts several processes only through mpirun."""
    hosts = scratch / "hosts"
    hosts.write_text("localhost\nlocalhost\n")
    options = "--cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    launch = [PYTHON.with_name("accelerate"), "launch", *options.split()]
    return [*launch, "--mpirun_hostfile", hosts, script]


def one_process(script: Path, scratch: Path) -> list[str | Path]:
    return [PYTHON, script]


@dataclass(frozen=True)
class Program:
    """A script, and the variables that make it run on either backend."""

    name: str
    script: str
    command: Callable[[Path, Path], list[str | Path]] = torchrun
    gloo: dict[str, str] = field(default_factory=dict)
    ccl: dict[str, str] = field(default_factory=lambda: {"CCL_REPLACE": "gloo"})


PROGRAMS = [
    Program("accelerate", "accelerate_training.py", accelerate_launch),
    Program("transformers Trainer", "transformers_trainer.py"),
    Program("transformers tensor parallel", "tensor_parallel.py"),
    Program(
        "lightning",
        "lightning_training.py",
        one_process,
        gloo={"PROCESS_GROUP_BACKEND": "gloo"},
        ccl={"PROCESS_GROUP_BACKEND": "ccl"},
    ),
    Program(
        "deepspeed ZeRO-2",
        "deepspeed_zero2.py",
        gloo={"DIST_BACKEND": "gloo"},
        ccl={"DIST_BACKEND": "gloo", "CCL_REPLACE": "gloo"},
    ),
    # DeepSpeed finds oneccl_bindings_for_pytorch and chooses ccl.
    Program(
        "deepspeed ZeRO-2 by itself",
        "deepspeed_zero2.py",
        gloo={"DIST_BACKEND": "gloo"},
        ccl={},
    ),
]
BY_NAME = {program.name: program for program in PROGRAMS}


def variables(**more: str) -> dict[str, str]:
    inherited = clean_environment()
    kept = {name: value for name, value in inherited.items() if not name.startswith(CHOICES)}
    own = {
        "PATH": f"{ENVIRONMENT}/bin:{kept['PATH']}",
        "OMP_NUM_THREADS": "1",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # the same kernels on every machine
        "HF_HUB_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",  # mpirun does not set it
        "MASTER_PORT": str(free_port()),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return {**kept, **own, **more}


# ---- bounded runs


@dataclass(frozen=True)
class ApplicationResult:
    """`returncode` is None if the command exceeded its time limit."""

    returncode: int | None
    output: str


def marked_processes(mark: str) -> list[int]:
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or exited meanwhile
            if mark.encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def kill_marked(mark: str) -> None:
    """Finds processes by their environment, because launchers start ranks in new sessions."""
    deadline = time.monotonic() + KILL_S
    while (processes := marked_processes(mark)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def run_bounded(command, environment: dict[str, str], bound_s: float) -> ApplicationResult:
    mark = f"APPLICATION_RUN={uuid.uuid4()}"
    name, _, value = mark.partition("=")
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**environment, name: value},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        returncode = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                returncode = process.wait(bound_s)
        finally:
            kill_marked(mark)
            process.wait()
        output.seek(0)
        return ApplicationResult(returncode, output.read())


def remove_locks() -> None:
    """A process that is killed while it compiles leaves its lock, and others would wait for it."""
    for lock in EXTENSIONS.glob("*/lock"):
        lock.unlink()


def run(program: Program, backend: str, *, expects: str = "") -> ApplicationResult:
    """Runs the program on `backend`; `expects` is the backend that the program asserts."""
    assert PYTHON.exists(), f"{ENVIRONMENT} is missing: tools/setup.sh applications"
    remove_locks()
    chosen = {"gloo": program.gloo, "ccl": program.ccl}[backend]
    with tempfile.TemporaryDirectory() as scratch:
        command = program.command(PROGRAMS_DIR / program.script, Path(scratch))
        environment = variables(APPLICATION_EXPECTS=expects, **chosen)
        return run_bounded(command, environment, BOUND_S)


# ---- checks; they raise AssertionError


def finished(program: Program, backend: str) -> dict:
    """The report of a successful run; on ccl the ranks assert that ccl was used."""
    result = run(program, backend, expects="ccl" if backend == "ccl" else "")
    lines = re.findall(r'\{"program".*?\}', result.output)
    assert result.returncode == 0 and len(lines) == 1, (
        f"{program.name} on {backend}: exit code {result.returncode}\n{result.output}"
    )
    return json.loads(lines[0])


def check_backend(report: dict, backend: str) -> None:
    expected = {"gloo": "ProcessGroupGloo", "ccl": "ProcessGroupCCL"}[backend]
    assert report["backend"] == expected, report
    assert (report["operations"] > 0) == (backend == "ccl"), report


def check_losses(on_gloo: dict, on_ccl: dict) -> None:
    difference = abs(on_gloo["loss"] - on_ccl["loss"])
    assert difference <= LOSS_TOLERANCE, f"losses differ by {difference}: {on_gloo} {on_ccl}"


def check_fails_on_gloo(program: Program) -> None:
    """Without the opt-in the program's own assertion fails, and nothing before it."""
    result = run(program, "gloo", expects="ccl")
    assert result.returncode not in (0, None) and NOT_OURS in result.output, (
        f"{program.name} without ccl: exit code {result.returncode}\n{result.output}"
    )
