"""Object collectives: sizes differ between ranks, so each call is two collectives."""

import pytest
import torch
import torch.distributed as dist
from support.debug_levels import assert_equal


def belongings(rank: int) -> dict:
    return {
        "rank": rank,
        "text": "é" * 1000 * rank,
        "tensor": torch.arange(rank + 1),
        "nothing": None,
    }


def plain(thing: dict) -> dict:
    return {**thing, "tensor": thing["tensor"].tolist()}


def check_collective(rank: int, size: int) -> None:
    mine = belongings(rank)
    expected = [plain(belongings(r)) for r in range(size)]

    everyones = [None] * size
    dist.all_gather_object(everyones, mine)
    assert_equal([plain(x) for x in everyones], expected, "all_gather_object")

    for root in range(size):
        gathered = [None] * size if rank == root else None
        dist.gather_object(mine, gathered, dst=root)
        if rank == root:
            assert_equal([plain(x) for x in gathered], expected, f"gather_object to {root}")

        objects = [root, "of", {"size": size}] if rank == root else [None] * 3
        dist.broadcast_object_list(objects, src=root)
        assert_equal(objects, [root, "of", {"size": size}], f"broadcast_object_list from {root}")

        received = [None]
        given = [belongings(r) for r in range(size)] if rank == root else None
        dist.scatter_object_list(received, given, src=root)
        assert_equal(plain(received[0]), expected[rank], f"scatter_object_list from {root}")


def test_collective(on_ranks):
    on_ranks(check_collective)


def check_between_two(rank: int, size: int) -> None:
    """A list travels along a chain of ranks, each of which appends itself."""
    if rank == 0:
        dist.send_object_list([["rank 0"], belongings(0)], dst=1)
        return
    received = [None, None]
    dist.recv_object_list(received, src=rank - 1)
    assert_equal(received[0], [f"rank {r}" for r in range(rank)], "history")
    assert_equal(plain(received[1]), plain(belongings(rank - 1)), "belongings")
    if rank + 1 < size:
        history = [*received[0], f"rank {rank}"]
        dist.send_object_list([history, belongings(rank)], dst=rank + 1)


def test_between_two(on_ranks):
    on_ranks(check_between_two)


def check_in_groups(rank: int, size: int) -> None:
    """Ranks of the group and of the world differ."""
    members = list(range(1, size))
    group = dist.new_group(members)
    if rank in members:
        everyones = [None] * len(members)
        dist.all_gather_object(everyones, rank, group=group)
        assert_equal(everyones, members, "all_gather_object")
        objects = [rank]
        dist.broadcast_object_list(objects, group_src=len(members) - 1, group=group)
        assert_equal(objects, [members[-1]], "broadcast_object_list")
        gathered = [None] * len(members) if rank == 1 else None
        dist.gather_object(rank * 10, gathered, group_dst=0, group=group)
        if rank == 1:
            assert_equal(gathered, [10 * r for r in members], "gather_object")
        received = [None]
        given = [f"for {r}" for r in members] if rank == members[-1] else None
        dist.scatter_object_list(received, given, src=members[-1], group=group)
        assert_equal(received, [f"for {rank}"], "scatter_object_list")
    dist.barrier()


def test_in_groups(on_ranks):
    on_ranks(check_in_groups)


def check_cannot_be_sent(rank: int, size: int) -> None:
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        dist.all_gather_object([None] * size, lambda: None)
    everyones = [None] * size
    dist.all_gather_object(everyones, rank)
    assert_equal(everyones, list(range(size)), "the group afterwards")


def test_cannot_be_sent(on_ranks):
    on_ranks(check_cannot_be_sent)
