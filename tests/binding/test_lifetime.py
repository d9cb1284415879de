"""Creating and destroying many groups leaks nothing."""

import gc
import os
import tempfile
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.ranks import init_group, run_ranks

GROUPS, WORLDS, WARM_UP = 100, 50, 10
# The allowed growth. Worker threads start when they are first needed, so a few may start late;
# allocators and torch's own tables vary. A leak exceeds the limits a hundredfold.
LIMITS = {"fds": 0, "threads": 2, "maps": 16, "shared": 2 << 20, "memory": 2 << 20}
SETTLE_S = 5


def status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields[name].split()[0]) * 1024


def footprint() -> dict[str, int]:
    gc.collect()
    return {
        "fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
        "shared": status_bytes("RssShmem"),
        "memory": status_bytes("VmRSS"),
    }


def use(group, size: int) -> None:
    """Uses everything that a group allocates on first use."""
    x = torch.ones(5000)
    dist.all_reduce(x, group=group)
    assert x.eq(size).all()
    work = dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    rank = dist.get_rank(group)
    y = torch.empty(20_000)
    received = dist.irecv(y, group_src=(rank - 1) % size, group=group)
    dist.send(torch.ones(20_000), group_dst=(rank + 1) % size, group=group)
    received.wait()
    work.wait()
    work.get_future().wait()


def check_growth(before: dict[str, int]) -> None:
    """Peers detect the end of a group a moment later, so this retries for SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while True:
        grown = {name: count - before[name] for name, count in footprint().items()}
        if all(grown[name] <= LIMITS[name] for name in grown):
            return
        assert time.monotonic() < end, f"grown by {grown} since {before}"
        time.sleep(0.1)


def check_groups(rank: int, size: int) -> None:
    for i in range(WARM_UP + GROUPS):
        if i == WARM_UP:
            before = footprint()
        group = dist.new_group(list(range(size)))
        use(group, size)
        dist.destroy_process_group(group)
        del group
    check_growth(before)


def test_groups_leave_nothing_behind():
    run_ranks(4, check_groups, bound_s=100)


def check_worlds(rank: int, size: int, directory: str) -> None:
    dist.destroy_process_group()
    for i in range(WARM_UP + WORLDS):
        if i == WARM_UP:
            before = footprint()
        init_group(rank, size, str(Path(directory) / f"store {i}"))
        use(None, size)
        dist.destroy_process_group()
    check_growth(before)


def test_worlds_leave_nothing_behind():
    with tempfile.TemporaryDirectory() as directory:
        run_ranks(4, check_worlds, directory, bound_s=100)


def check_failed_groups(rank: int, size: int) -> None:
    """Creates groups that fail and whose Works are kept until after their end."""
    kept = []
    for i in range(WARM_UP + WORLDS):
        if i == WARM_UP:
            kept.clear()
            before = footprint()
        group = dist.new_group(list(range(size)))
        kept.append(dist.all_reduce(torch.ones(100), group=group, async_op=True))
        kept[-1].wait()
        try:
            dist.all_reduce(torch.ones(2 if rank == 1 else 3), group=group)
            raise AssertionError("the disagreement was not detected")
        except dist.DistBackendError:
            pass
        dist.destroy_process_group(group)
        del group
    kept.clear()
    dist.barrier()
    check_growth(before)


def test_failed_groups_leave_nothing_behind():
    run_ranks(3, check_failed_groups, bound_s=100)


@pytest.mark.serial  # compares /dev/shm before and after
def test_nothing_stays_in_shared_memory():
    def names() -> set[str]:
        return {path.name for path in Path("/dev/shm").iterdir()}

    before = names()
    run_ranks(4, use_world)
    assert not {name for name in names() - before if "ccl" in name}


def use_world(rank: int, size: int) -> None:
    use(None, size)
