"""Calls that Gloo refuses, computes wrongly or crashes in, and the correct result with ccl.

Gloo gives silently wrong numbers for a broadcast or reduce into a view, refuses uneven lists and
several dtypes, ends in SIGABRT when ranks disagree on a size, names a dead peer by its port, and
crashes on a 0-dim output of reduce_scatter.
"""

import os
import re
import signal
import time

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks, started_ranks

# ---- views


def views(rank: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns pairs of a view and its base tensor."""
    whole = [torch.arange(48.0).reshape(6, 8) + 100 * rank for _ in range(3)]
    pictures = torch.arange(48.0).reshape(1, 4, 3, 4) + 100 * rank
    pictures = pictures.to(memory_format=torch.channels_last)
    return {
        "transposed": (whole[0].t(), whole[0]),
        "every second column": (whole[1][:, ::2], whole[1]),
        "a piece in the middle": (whole[2][1:5, 2:7], whole[2]),
        "channels last": (pictures, pictures),
    }


def check_views(rank: int, size: int) -> None:
    root = size - 1
    for name, (broadcast, whole) in views(rank).items():
        expected = whole.clone()
        expected.as_strided(broadcast.shape, broadcast.stride(), broadcast.storage_offset()).copy_(
            views(root)[name][0]
        )
        dist.broadcast(broadcast, src=root)
        assert torch.equal(whole, expected), f"broadcast, {name}: {whole}"
    for name, (reduced, _) in views(rank).items():
        inputs = [views(r)[name][0] for r in range(size)]
        dist.reduce(reduced, dst=root)
        expected = sum(inputs) if rank == root else inputs[rank]
        assert torch.equal(reduced, expected), f"reduce, {name}: {reduced}"


def test_broadcast_and_reduce_of_views():
    run_ranks(3, check_views)


# ---- uneven lists


def check_uneven(rank: int, size: int) -> None:
    outputs = [torch.empty(r, 2) for r in range(size)]
    dist.all_gather(outputs, torch.full((rank, 2), float(rank)))
    assert all(torch.equal(x, torch.full((r, 2), float(r))) for r, x in enumerate(outputs))

    # rank a sends a + b elements to rank b
    inputs = [torch.full((rank + r,), 10.0 * rank + r) for r in range(size)]
    outputs = [torch.empty(r + rank) for r in range(size)]
    dist.all_to_all(outputs, inputs)
    for r, x in enumerate(outputs):
        assert torch.equal(x, torch.full((r + rank,), 10.0 * r + rank)), x


def test_uneven_lists():
    run_ranks(4, check_uneven)


# ---- dtypes

REFUSED_DTYPES = [
    torch.int16,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


def check_dtype(rank: int, size: int, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 3]).add(rank).to(dtype)
    dist.all_reduce(x)
    assert x.to(torch.float32).tolist() == [3.0, 6.0, 12.0], x


@pytest.mark.parametrize("dtype", REFUSED_DTYPES, ids=str)
def test_dtypes(dtype):
    run_ranks(3, check_dtype, dtype)


# ---- ranks that disagree on a size


def check_sizes(rank: int, size: int, asynchronous: bool) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        work = dist.all_reduce(torch.ones(400 if rank == 1 else 300), async_op=asynchronous)
        if asynchronous:
            work.wait()
    return str(caught.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_different_sizes(asynchronous):
    for message in run_ranks(3, check_sizes, asynchronous):
        assert re.search(r"\brank 1\b", message) and re.search(r"\brank [02]\b", message), message
        assert "(count 300," in message and "(count 400," in message, message


# ---- a dead peer


def check_dead_peer(rank: int, size: int, blocked) -> str:
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError) as caught:
        blocked()
    return str(caught.value)


def all_reduce():
    dist.all_reduce(torch.ones(4))


def all_reduce_async():
    dist.all_reduce(torch.ones(4), async_op=True).wait()


def recv():
    dist.recv(torch.ones(4), src=1)


def big_send():
    dist.send(torch.ones(1 << 20), dst=1)


@pytest.mark.parametrize("blocked", [all_reduce, all_reduce_async, recv, big_send])
def test_dead_peer_is_named_by_rank(blocked):
    with started_ranks(3, check_dead_peer, blocked) as ranks:
        pass
    for survivor in (ranks[0], ranks[2]):
        assert not survivor.failure, survivor.failure
        message = survivor.value
        assert re.search(rf"\brank 1 \(host \S+, pid {ranks[1].pid}\)", message), message


# ---- 0-dim outputs


def check_scalars(rank: int, size: int) -> None:
    output = torch.tensor(-1.0)
    dist.reduce_scatter(output, [torch.tensor(10.0 * rank + r) for r in range(size)])
    expected = sum(10.0 * r + rank for r in range(size))
    assert output.shape == () and output.item() == expected, output

    output = torch.tensor(-1.0)
    dist.reduce_scatter_single(output, torch.arange(float(size)) + 10 * rank)
    assert output.item() == expected, output


def test_reduce_scatter_into_a_scalar():
    run_ranks(3, check_scalars)
