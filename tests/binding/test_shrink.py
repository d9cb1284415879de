"""torch.distributed.shrink_group(): the survivors of a failure go on in a smaller group."""

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist
from support.launchers import free_port
from support.ranks import run_ranks, started_ranks

pytestmark = pytest.mark.skipif(
    not hasattr(dist, "shrink_group"), reason="torch before 2.10 has no shrink_group()"
)


def die_soon() -> None:
    """In the middle of the calls that follow."""
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGKILL]).start()


def survivors_of(size: int, victims: list[int], function, *args, **options) -> None:
    with started_ranks(size, function, *args, **options) as ranks:
        pass
    for number, rank in enumerate(ranks):
        assert bool(rank.failure) == (number in victims), f"rank {number}: {rank.failure}"


def check_group(group, size: int, rank: int) -> None:
    assert dist.get_world_size(group) == size
    assert dist.get_rank(group) == rank
    x = torch.full((1000,), float(rank + 1))
    dist.all_reduce(x, group=group)
    assert x.eq(size * (size + 1) / 2).all()


def fail_all_reduce(group=None) -> None:
    with pytest.raises(dist.DistBackendError, match="Connection closed by peer"):
        while True:
            dist.all_reduce(torch.ones(10), group=group)


def check_after_kill(rank: int, size: int, victim: int, flags: int) -> None:
    if rank == victim:
        die_soon()
    fail_all_reduce()
    own = rank - (rank > victim)
    shrunk = dist.shrink_group([victim], shrink_flags=flags)
    assert shrunk is dist.distributed_c10d._get_default_group()
    assert dist.get_backend() == "ccl"
    check_group(shrunk, size - 1, own)
    check_group(None, size - 1, own)
    group = dist.new_group()
    check_group(group, size - 1, own)
    pair = dist.new_group([0, size - 2])
    if own in (0, size - 2):
        check_group(pair, 2, int(own != 0))
    values = [None] * (size - 1)
    dist.all_gather_object(values, own)
    assert values == list(range(size - 1))
    x = torch.tensor([own])
    dist.broadcast(x, group_src=1)
    assert x.item() == 1
    dist.barrier()


@pytest.mark.parametrize("flags", ["SHRINK_ABORT", "SHRINK_DEFAULT"])
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_survivors_go_on(victim, flags):
    value = getattr(dist.distributed_c10d, flags)
    survivors_of(4, [victim], check_after_kill, victim, value)


@pytest.mark.parametrize("victim", [0, 2])
def test_the_rank_that_serves_the_store_may_have_died(victim):
    store = {"init_method": f"tcp://127.0.0.1:{free_port()}"}
    survivors_of(3, [victim], check_after_kill, victim, 1, group=store)


def check_again_and_again(rank: int, size: int) -> None:
    while size > 1:
        check_group(None, size, rank)
        if rank == 0:  # it serves the store, and the store that replaced it
            die_soon()
        fail_all_reduce()
        dist.shrink_group([0], shrink_flags=1)
        rank, size = rank - 1, size - 1
    check_group(None, 1, 0)


def test_shrinks_again_and_again():
    store = {"init_method": f"tcp://127.0.0.1:{free_port()}"}
    survivors_of(4, [0, 1, 2], check_again_and_again, group=store)


def check_healthy(rank: int, size: int) -> None:
    kept = dist.new_group()
    dist.all_reduce(torch.ones(10), group=kept)
    if rank == 1:
        return
    dist.shrink_group([1])
    check_group(None, size - 1, rank - (rank > 1))


def test_a_healthy_rank_can_be_excluded():
    run_ranks(3, check_healthy)


def check_subgroup(rank: int, size: int) -> None:
    group = dist.new_group([0, 1, 2])
    if rank < 2:
        shrunk = dist.shrink_group([2], group=group)
        check_group(shrunk, 2, rank)
        dist.destroy_process_group(shrunk)
    check_group(None, size, rank)


def test_another_group_leaves_the_default_group_alone():
    run_ranks(4, check_subgroup)


def check_abort(rank: int, size: int) -> None:
    """SHRINK_ABORT ends operations in flight; here rank 2 never joins them."""
    group = dist.new_group()
    if rank < 2:
        work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
    dist.barrier()  # both operations are in flight
    if rank < 2:
        shrunk = dist.shrink_group([2], group=group, shrink_flags=1)
        with pytest.raises(dist.DistBackendError, match=r"shrink_group\(\) excludes 2"):
            work.wait()
        check_group(shrunk, 2, rank)
    dist.barrier()


def test_abort_ends_operations_in_flight():
    run_ranks(3, check_abort)


def check_disagreement(rank: int, size: int) -> None:
    group = dist.new_group()
    if rank < 2:
        with pytest.raises(dist.DistBackendError) as caught:
            dist.shrink_group([2] if rank == 0 else [2, 3], group=group)
        assert "rank 0 excludes rank 2; rank 1 excludes ranks 2,3" in str(caught.value)
        check_group(dist.shrink_group([2, 3], group=group), 2, rank)
    dist.barrier()


def test_disagreement_is_an_error_that_names_the_ranks_and_can_be_repeated():
    run_ranks(4, check_disagreement)


def check_direct(rank: int, size: int) -> None:
    """Without torch's bookkeeping."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.supports_shrinking
    if rank == 0:
        return
    shrunk = backend.shrink([0])
    assert (shrunk.rank(), shrunk.size()) == (rank - 1, size - 1)
    assert shrunk.options._timeout == backend.options._timeout
    x = torch.ones(10)
    shrunk.allreduce([x]).wait()
    assert x.eq(size - 1).all()
    shrunk.shutdown()


def test_the_backend_alone():
    run_ranks(3, check_direct)
