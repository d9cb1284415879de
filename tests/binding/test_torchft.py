"""torch_ccl.torchft without torchft: with a stand-in for the part of it that the module uses.

With the real one: tests/applications/test_torchft_training.py and tests/torchft_suite
(make test-all).
"""

import os
import signal
import sys
import threading
import time
import types
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.ranks import NO_GROUP, run_ranks, run_script, started_ranks

SHORT = timedelta(seconds=0.3)
LONG = timedelta(seconds=50)
SOON_S = 10  # much less than LONG


class Wrapper(dist.ProcessGroup):
    """What torchft's ProcessGroupWrapper does; the store is a file."""

    def __init__(self, timeout: timedelta):
        super().__init__(0, 1)
        self._pg = None
        self._timeout = timeout

    def configure(self, store, replica_id, rank, world_size, quorum_id=None):
        self._quorum_id = quorum_id
        self.abort(errored=False)
        self._pg = self._create_pg(dist.FileStore(store, world_size), rank, world_size)

    def abort(self, errored=True):
        if self._pg is not None:
            self._pg.abort()
        self._pg = None

    def set_timeout(self, timeout):
        self._timeout = timeout


def new_group(timeout: timedelta = LONG):
    torchft = types.ModuleType("torchft")
    torchft.process_group = types.ModuleType("torchft.process_group")
    torchft.process_group.ProcessGroupWrapper = Wrapper
    torchft.process_group.ProcessGroupBaby = object
    sys.modules.update({"torchft": torchft, "torchft.process_group": torchft.process_group})
    from torch_ccl.torchft import ProcessGroupCCL

    return ProcessGroupCCL(timeout)


def reduced(group) -> float:
    x = torch.ones(1000)
    group._pg.allreduce([x], dist.AllreduceOptions()).wait()
    return x[0].item()


def check_kill(rank: int, size: int, directory: str) -> None:
    group = new_group()
    group.configure(f"{directory}/0", "a", rank, size, 7)
    assert reduced(group) == size and group.errored() is None
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match=r"rank 0 .* died .* quorum 7 .*closed by peer"):
        reduced(group)
    assert "aborted" in str(group.errored())
    start = time.monotonic()
    group.configure(f"{directory}/1", "a", rank - 1, size - 1, 8)
    assert time.monotonic() - start < SOON_S
    assert reduced(group) == size - 1 and group.errored() is None
    group.shutdown()


def test_goes_on_after_a_kill(tmp_path):
    with started_ranks(3, check_kill, str(tmp_path), group=NO_GROUP) as ranks:
        pass
    assert [bool(rank.failure) for rank in ranks] == [True, False, False], ranks[1].failure


def check_configure_ends_calls(rank: int, size: int, directory: str) -> None:
    """Rank 1 does not join the call of rank 0; its own next call fails at once."""
    done = Path(directory) / "done"
    group = new_group()
    group.configure(f"{directory}/0", "a", rank, size)
    assert reduced(group) == size
    if rank == 0:
        old, errors = group._pg, []

        def call() -> None:
            try:
                old.allreduce([torch.ones(10)], dist.AllreduceOptions()).wait()
            except dist.DistBackendError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.1)
        group.configure(f"{directory}/alone", "a", 0, 1)
        thread.join(SOON_S)
        assert len(errors) == 1 and reduced(group) == 1
        done.touch()
    else:
        while not done.exists():
            time.sleep(0.01)
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError):
            reduced(group)
        assert time.monotonic() - start < SOON_S


def test_configure_ends_the_calls_of_the_old_group(tmp_path):
    run_ranks(2, check_configure_ends_calls, str(tmp_path), group=NO_GROUP)


def check_abort_and_timeout(rank: int, size: int, directory: str) -> None:
    done = Path(directory) / "done"
    group = new_group()
    group.configure(f"{directory}/0", "a", rank, size)
    group.set_timeout(SHORT)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"timed out after 0\.3 s"):
            reduced(group)
        done.touch()
    while not done.exists():
        time.sleep(0.01)
    group.abort()
    assert "aborted" in str(group.errored()) and group._pg is None
    group.set_timeout(timedelta(seconds=20))
    group.configure(f"{directory}/1", "a", rank, size)
    assert group.errored() is None and group.getBackendName() == "torchft-ccl"


def test_abort_and_timeout(tmp_path):
    run_ranks(2, check_abort_and_timeout, str(tmp_path), group=NO_GROUP)


def test_import():
    """It is not imported with torch_ccl, and says what it needs."""
    script = """
import sys, torch_ccl
assert "torch_ccl.torchft" not in sys.modules and "torchft" not in sys.modules
sys.modules["torchft"] = None
try:
    import torch_ccl.torchft
except ModuleNotFoundError as error:
    print(error)
"""
    printed = run_script(script)
    assert printed.startswith("torch_ccl.torchft needs the package torchft (pip install torchft): ")
    assert printed.count("\n") == 1
