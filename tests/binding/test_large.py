"""Tensors over 2 GiB: counts, offsets and sizes must not be truncated to 32 bits."""

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks

pytestmark = pytest.mark.timeout(900)

BYTES = 2**31 + 4099  # odd, and beyond a signed 32-bit count
STRIDE = 1_000_003  # stride in bytes of the values that are checked: a prime


def pattern(rank: int) -> torch.Tensor:
    """Returns values that identify their offset, also beyond 2 GiB, and their rank."""
    period = torch.arange(97, dtype=torch.uint8) + rank
    return period.repeat(BYTES // 97 + 1)[:BYTES]


def samples() -> torch.Tensor:
    return torch.cat([torch.arange(0, BYTES, STRIDE), torch.arange(BYTES - 4200, BYTES)])


def check_all_reduce(rank: int, size: int) -> None:
    x = pattern(rank)
    dist.all_reduce(x)
    at = samples()
    assert x[at].equal((2 * (at % 97) + 1).to(torch.uint8))


def check_broadcast(rank: int, size: int) -> None:
    x = pattern(1) if rank == 1 else torch.zeros(BYTES, dtype=torch.uint8)
    dist.broadcast(x, 1)
    at = samples()
    assert x[at].equal((at % 97 + 1).to(torch.uint8))


def check_messages(rank: int, size: int) -> None:
    at = samples()
    if rank == 0:
        dist.send(pattern(0), 1)
    else:
        x = torch.zeros(BYTES, dtype=torch.uint8)
        dist.recv(x, 0)
        assert x[at].equal((at % 97).to(torch.uint8))


def check_all_to_all(rank: int, size: int) -> None:
    """Rank 0 sends nearly all elements to rank 1, and none to itself."""
    splits = {0: [0, BYTES], 1: [5, 0]}[rank]
    received = {0: [0, 5], 1: [BYTES, 0]}[rank]
    source = pattern(0) if rank == 0 else torch.arange(5, dtype=torch.uint8)
    x = torch.zeros(sum(received), dtype=torch.uint8)
    dist.all_to_all_single(x, source, received, splits)
    if rank == 0:
        assert x.tolist() == [0, 1, 2, 3, 4]
    else:
        at = samples()
        assert x[at].equal((at % 97).to(torch.uint8))


def check_gather(rank: int, size: int) -> None:
    """The parts are below 2 GiB, the total is above."""
    half = BYTES // 2 + 1
    part = torch.full((half,), rank + 1, dtype=torch.uint8)
    whole = torch.zeros(2 * half, dtype=torch.uint8)
    dist.all_gather_into_tensor(whole, part)
    assert whole[:half:STRIDE].eq(1).all() and whole[half::STRIDE].eq(2).all()
    assert whole[half - 1] == 1 and whole[half] == 2 and whole[-1] == 2
    dist.reduce_scatter_tensor(part, whole)
    assert part[::STRIDE].eq(2 * (rank + 1)).all() and part[-1] == 2 * (rank + 1)


def test_large_all_reduce():
    run_ranks(2, check_all_reduce, bound_s=300)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_broadcast, check_messages, check_all_to_all, check_gather])
def test_large(check):
    run_ranks(2, check, bound_s=300)
