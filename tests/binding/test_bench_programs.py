"""The programs of `torch-ccl bench` run, and what the benches check can fail."""

import mmap

import pytest
import torch
from support import ranks  # noqa: F401  (its server of processes has torch loaded)
from torch_ccl.cli import footprint, processes
from torch_ccl.cli.decoder import Shape
from torch_ccl.cli.footprint_ranks import resident_kib
from torch_ccl.cli.programs import check_losses, ddp_step, decode
from torch_ccl.cli.training import Task
from torch_ccl.cli.verdicts import judged

SMALL = Shape(hidden=32, layers=2, tokens=8)
WRONG = Shape(hidden=32, layers=2, tokens=8, with_reductions=False)


@pytest.fixture(autouse=True)
def quick_start(monkeypatch):
    monkeypatch.setattr(processes, "START_METHOD", "forkserver")


def test_decode_runs_and_notices_a_missing_reduction():
    turns = []
    with pytest.raises(AssertionError, match=r"ccl by hand: wrong output of rank 0.*off by"):
        decode(1, lambda: turns.append(1), [SMALL, WRONG])
    assert len(turns) == 1  # the right one passed


def test_ddp_step_runs():
    rows, verdicts = ddp_step(1, lambda: None, Task(width=16, layers=2, steps=2))
    assert set(rows[0]["variants"]) == {"1 thread", "2 threads", "ccl", "gloo"}
    assert verdicts[0]["goal"] == "> 1"


def test_wrong_losses_are_noticed():
    check_losses("ccl", [2.0, 1.0], [2.0, 1.0])
    for wrong in (1.01, float("nan")):
        with pytest.raises(AssertionError, match="step 1"):
            check_losses("ccl", [2.0, wrong], [2.0, 1.0])


def test_the_worse_quartile_decides():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]  # quartiles 2 and 4
    assert judged("x", values, "us", at_least=2)["reached"]
    assert not judged("x", values, "us", above=2)["reached"]
    assert judged("x", values, "us", at_most=4)["reached"]
    assert not judged("x", values, "us", below=4)["reached"]
    assert "goal" not in judged("x", values, "us")


@pytest.mark.alone  # Pss changes when other processes map or unmap torch's libraries
def test_memory_that_is_held_is_seen_and_freed_memory_is_not():
    before = resident_kib()
    private, shared = torch.ones(4 << 20), mmap.mmap(-1, 8 << 20)  # 16 and 8 MiB
    shared.write(bytes(8 << 20))
    held = resident_kib()
    assert 15 << 10 < held["Pss_Anon"] - before["Pss_Anon"] < 17 << 10
    assert 7 << 10 < held["Pss_Shmem"] - before["Pss_Shmem"] < 9 << 10
    del private
    shared.close()
    assert resident_kib()["Pss"] - before["Pss"] < 1 << 10


def test_the_footprint_is_measured():
    """Two ranks and short waits; the parts themselves, not their figures."""
    rows = footprint.waiting(1, lambda: None, wait_s=0.2)
    rows += footprint.memory(1, lambda: None, size=2)
    rows += footprint.start(1, lambda: None, sizes=(2,))
    assert all(row["median"] is not None for row in rows) and len(rows) == 3 + 6 + 3
