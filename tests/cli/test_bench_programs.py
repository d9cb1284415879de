"""The programs and the footprint of `torch-ccl bench` run, and their checks can fail."""

import mmap
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from support import ranks  # noqa: F401  (its server of processes has torch loaded)
from torch_ccl.cli.bench import footprint
from torch_ccl.cli.bench import ranks as bench_ranks
from torch_ccl.cli.bench.command import PROGRAMS as PROGRAM_NAMES
from torch_ccl.cli.bench.footprint_ranks import pss_kib
from torch_ccl.cli.bench.programs import PROGRAMS
from torch_ccl.cli.bench.programs.decode import decode
from torch_ccl.cli.bench.programs.decoder import Shape
from torch_ccl.cli.bench.programs.trainer import Task
from torch_ccl.cli.bench.programs.training import (
    FSDP2_TASKS,
    check_losses,
    ddp_step,
    fsdp2_step,
)

SMALL = Shape(hidden=32, layers=2, tokens=8)
WRONG = Shape(hidden=32, layers=2, tokens=8, with_reductions=False)
DDP = Task("ddp_step", "ddp", layers=2, width=16, expansion=2, steps=2)
FSDP2 = replace(DDP, name="fsdp2_step", parallelism="fsdp2")
VARIANTS = ["1 process, 1 thread", "1 process, 2 threads", "ccl", "gloo"]


def no_progress(_text):
    return nullcontext()


@pytest.fixture(autouse=True)
def fork_ranks(monkeypatch):
    """Ranks start faster than with spawn."""
    monkeypatch.setattr(bench_ranks, "START_METHOD", "forkserver")


def test_every_program_has_a_function():
    assert tuple(PROGRAMS) == PROGRAM_NAMES


def test_decode_runs_and_detects_a_missing_reduction():
    passed = []

    def step(name):
        passed.append(name)
        return nullcontext()

    message = r"ccl explicit: wrong output of rank 0.*relative error"
    with pytest.raises(AssertionError, match=message):
        decode(1, step, [SMALL, WRONG])
    assert len(passed) == 2  # the first shape passed, the second failed


@pytest.mark.parametrize(("run", "task"), [(ddp_step, DDP), (fsdp2_step, [FSDP2])])
def test_training_step_runs(run, task):
    (result,) = run(1, no_progress, task)
    assert list(result.speeds) == VARIANTS
    assert str(result.ratios[0].goal) == "> 1"
    assert result.ratios[0].name.endswith("ccl / gloo")


def test_training_step_detects_missing_reductions():
    with pytest.raises(AssertionError, match=r"ddp_step, ccl: loss .* of step \d+ is not"):
        ddp_step(1, no_progress, replace(DDP, with_reductions=False))


def test_fsdp2_configurations():
    assert [(task.layers, task.width) for task in FSDP2_TASKS] == [(20, 64), (12, 1024)]


def test_wrong_losses_are_detected():
    check_losses("ccl", [2.0, 1.0], [2.0, 1.0])
    for wrong in (1.01, float("nan")):
        with pytest.raises(AssertionError, match="step 1"):
            check_losses("ccl", [2.0, wrong], [2.0, 1.0])


@pytest.mark.serial  # Pss changes when other processes map or unmap torch's libraries
def test_memory_in_use_counts_and_freed_memory_does_not():
    before = pss_kib()
    private, shared = torch.ones(4 << 20), mmap.mmap(-1, 8 << 20)  # 16 and 8 MiB
    shared.write(bytes(8 << 20))
    held = pss_kib()
    assert 15 << 10 < held["Pss_Anon"] - before["Pss_Anon"] < 17 << 10
    assert 7 << 10 < held["Pss_Shmem"] - before["Pss_Shmem"] < 9 << 10
    del private
    shared.close()
    assert pss_kib()["Pss"] - before["Pss"] < 1 << 10


def test_footprint_measurements():
    """Runs with two ranks and short waits. The figures are not checked."""
    figures = footprint.waiting(1, no_progress, wait_s=0.2)
    figures += footprint.memory(1, no_progress, size=2)
    figures += footprint.start_up(1, no_progress, sizes=(2,))
    assert [figure.unit for figure in figures] == ["% of a CPU"] * 3 + ["MiB"] * 6 + [
        "ms",
        "ms",
        "x",
    ]
    assert all(figure.summary.median is not None for figure in figures)
