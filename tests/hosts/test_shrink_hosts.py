"""torch.distributed.shrink_group() over several hosts."""

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist
from support.function_ranks import started_on_hosts
from support.virtual_hosts import virtual_hosts

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "shrink_group"), reason="torch before 2.10 has no shrink_group()"
)


@pytest.fixture(scope="module")
def hosts():
    with virtual_hosts(2) as started:
        yield started


def check_group(group, size: int, rank: int) -> None:
    assert (dist.get_world_size(group), dist.get_rank(group)) == (size, rank)
    x = torch.full((100_000,), float(rank + 1))
    dist.all_reduce(x, group=group)
    assert x.eq(size * (size + 1) / 2).all()


def go_on(rank: int, size: int, victims: list[int]) -> None:
    check_group(None, size, rank)
    if rank in victims:
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGKILL]).start()
    with pytest.raises(dist.DistBackendError, match="Connection closed by peer"):
        while True:
            dist.all_reduce(torch.ones(10))
    dist.shrink_group(victims, shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    own = rank - sum(victim < rank for victim in victims)
    check_group(None, size - len(victims), own)
    check_group(dist.new_group(), size - len(victims), own)
    dist.barrier()


@pytest.mark.parametrize("victims", [[3], [0], [0, 2], [0, 1]], ids=str)
def test_survivors_go_on(hosts, victims):
    """Rank 0 serves the store: another host must reach the new one."""
    with started_on_hosts(hosts, [2, 2], go_on, victims) as ranks:
        pass
    failures = {number: rank.failure for number, rank in enumerate(ranks) if rank.failure}
    assert list(failures) == victims, failures
