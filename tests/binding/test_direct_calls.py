"""Methods of ProcessGroupCCL called without torch.distributed, and torch_ccl.monitored_barrier."""

import tempfile
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks, run_script


def test_names():
    run_script("""
import torch, torch_ccl, oneccl_bindings_for_pytorch
assert torch.distributed.ProcessGroupCCL is torch_ccl.ProcessGroupCCL
assert oneccl_bindings_for_pytorch.monitored_barrier is torch_ccl.monitored_barrier
""")


def direct_group(rank: int, size: int, path: str, *timeout):
    import torch_ccl  # noqa: F401

    return dist.ProcessGroupCCL(dist.FileStore(path, size), rank, size, *timeout)


@pytest.fixture
def store():
    with tempfile.TemporaryDirectory() as directory:
        yield str(Path(directory) / "direct")


class LateRank:
    """Rank 1 is late in every call, so that no other rank can finish early by chance."""

    def __init__(self, group, rank: int):
        self._group, self._rank = group, rank

    def __getattr__(self, name):
        if self._rank == 1:
            time.sleep(0.05)
        return getattr(self._group, name)


def same(found, expected) -> None:
    assert torch.equal(found, expected), f"{found} instead of {expected}"


def check_collectives(rank: int, size: int, path: str) -> None:
    group = LateRank(direct_group(rank, size, path), rank)
    inputs = [torch.arange(2.0 * size) + 10 * r for r in range(size)]
    mine, total = inputs[rank], torch.stack(inputs).sum(0)

    x = mine.clone()
    group.allreduce(x)
    same(x, total)
    x = mine.clone()
    group.allreduce([x])
    same(x, total)
    x = mine.clone()
    group.allreduce(x, dist.ReduceOp.MAX, timeout=timedelta(seconds=20))
    same(x, inputs[-1])
    x, ones = mine.clone(), torch.ones(3)
    group.allreduce_coalesced([x, ones])
    same(x, total)
    same(ones, torch.ones(3) * size)
    x = mine.clone()
    group.broadcast(x, root=1)
    same(x, inputs[1])
    x = mine.clone()
    group.reduce(x, root=0)
    if rank == 0:
        same(x, total)

    outputs = [torch.zeros(2 * size) for _ in range(size)]
    group.allgather(outputs, mine)
    same(torch.stack(outputs), torch.stack(inputs))
    output = torch.zeros(2 * size * size)
    group._allgather_base(output, mine)
    same(output, torch.cat(inputs))
    outputs = [[torch.zeros(2 * size)] for _ in range(size)]
    group.allgather_coalesced(outputs, [mine])
    same(torch.cat([row[0] for row in outputs]), torch.cat(inputs))
    outputs = [torch.zeros(2 * size) for _ in range(size)] if rank == 0 else []
    group.gather(outputs, mine, root=0)
    if rank == 0:
        same(torch.cat(outputs), torch.cat(inputs))

    output = torch.zeros(2)
    group.scatter(output, list(inputs[1].split(2)) if rank == 1 else [], root=1)
    same(output, inputs[1].split(2)[rank])
    output = torch.zeros(2)
    group.reduce_scatter(output, list(mine.split(2)))
    same(output, total.split(2)[rank])
    output = torch.zeros(2)
    group._reduce_scatter_base(output, mine)
    same(output, total.split(2)[rank])

    exchanged = torch.cat([x.split(2)[rank] for x in inputs])
    output = torch.zeros(2 * size)
    group.alltoall_base(output, mine, [], [])
    same(output, exchanged)
    outputs = [torch.zeros(2) for _ in range(size)]
    group.alltoall(outputs, list(mine.split(2)))
    same(torch.cat(outputs), exchanged)
    assert group.barrier().is_completed()


def test_collectives_complete(store):
    run_ranks(3, check_collectives, store)


def check_complete_with_options(rank: int, size: int, path: str) -> None:
    """As Intel's backend does, whatever asyncOp says: its default is True."""
    group = LateRank(direct_group(rank, size, path, timedelta(seconds=30)), rank)
    for asynchronous in (True, False):
        options = dist.AllreduceOptions()
        options.asyncOp = asynchronous
        x = torch.ones(3)
        work = group.allreduce([x], opts=options)
        same(x, torch.ones(3) * size)
        assert work.is_completed()


def test_complete_with_options(store):
    run_ranks(2, check_complete_with_options, store)


def check_messages(rank: int, size: int, path: str) -> None:
    """send and recv do not block: a rank can send to itself."""
    group = direct_group(rank, size, path)
    x, y = torch.full((3,), float(rank)), torch.zeros(3)
    works = [group.send([x], rank, 0), group.recv([y], rank, 0)]
    for work in works:
        work.wait()
    same(y, x)


def test_messages(store):
    run_ranks(2, check_messages, store)


def check_timeout(rank: int, size: int, path: str) -> None:
    group = direct_group(rank, size, path, timedelta(seconds=1))
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError):
            group.allreduce(torch.ones(3))
        assert 0.9 < time.monotonic() - start < 5
    else:
        time.sleep(2)


def test_timeout(store):
    run_ranks(2, check_timeout, store)


# ---- monitored_barrier


def check_monitored_barrier(rank: int, size: int) -> None:
    from torch_ccl import monitored_barrier

    monitored_barrier()
    monitored_barrier(dist.group.WORLD, timedelta(seconds=20), wait_all_ranks=True)
    pair = dist.new_group([0, 1])
    monitored_barrier(pair)  # returns at once on a rank that is not a member
    dist.barrier()


def test_monitored_barrier():
    run_ranks(3, check_monitored_barrier)


def check_missing_rank(rank: int, size: int, wait_all_ranks: bool) -> str:
    from torch_ccl import monitored_barrier

    if rank in (1, 3):
        time.sleep(4)
        return ""
    with pytest.raises(RuntimeError) as caught:
        monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks=wait_all_ranks)
    return str(caught.value)


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_missing_rank(wait_all_ranks):
    message = run_ranks(4, check_missing_rank, wait_all_ranks)[0]
    assert ("Ranks 1, 3 failed" if wait_all_ranks else "Rank 1 failed") in message, message
