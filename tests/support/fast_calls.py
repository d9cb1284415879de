"""For tests of fast calls: which calls lead to torch's functions; the data of a rank."""

import collections
import contextlib
import functools

import torch
import torch_ccl
from torch.distributed import distributed_c10d as c10d

NAMES = [
    name
    for name in (
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "recv",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "send",
    )
    if hasattr(c10d, name)
]


def cell_of(function):
    [cell] = [c for c in function.__closure__ if c.cell_contents is function.__wrapped__]
    return cell


def count_originals() -> collections.Counter:
    """Switches fast calls on; the counter counts the calls of torch's functions from then on."""
    counts: collections.Counter = collections.Counter()

    def counted(name, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for name in NAMES:
        function = getattr(c10d, name)
        cell = cell_of(function)
        cell.cell_contents = function.__wrapped__ = counted(name, function.__wrapped__)
    torch_ccl.fast_calls()
    return counts


@contextlib.contextmanager
def originals_called(counts: collections.Counter, times: int):
    """In the block torch's functions must be called this often."""
    before = sum(counts.values())
    yield
    assert sum(counts.values()) - before == times, counts


def own(rank: int, *shape: int, dtype=torch.float32) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + rank).to(dtype)
