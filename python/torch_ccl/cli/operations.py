"""The operations that `torch-ccl bench` measures: one row each.

A row makes, for one rank, three functions: `fill(i)` writes fresh values before iteration i,
`call()` is what is timed, and `is_right(i, all_of_it)` looks at the result, at its ends or at every
element. Values are small whole numbers, exact in every dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Setting:
    """Where and on what an operation runs. `count` is elements of the whole tensor."""

    rank: int
    size: int
    count: int
    dtype: torch.dtype
    group: dist.ProcessGroup


@dataclass
class Steps:
    fill: Callable[[int], None]
    call: Callable[[], None]
    is_right: Callable[[int, bool], bool]


def value(i: int, rank: int) -> int:
    return (i * 5 + rank * 3) % 11


def holds(tensor: torch.Tensor, expected: int, all_of_it: bool) -> bool:
    if all_of_it:
        return bool(tensor.eq(expected).all())
    return tensor[0].item() == expected and tensor[-1].item() == expected


def all_reduce(s: Setting) -> Steps:
    x = torch.empty(s.count, dtype=s.dtype)
    return Steps(
        lambda i: x.fill_(value(i, s.rank)),
        lambda: dist.all_reduce(x, group=s.group),
        lambda i, all_of_it: holds(x, sum(value(i, r) for r in range(s.size)), all_of_it),
    )


def broadcast(s: Setting) -> Steps:
    x = torch.empty(s.count, dtype=s.dtype)
    return Steps(
        lambda i: x.fill_(value(i, s.rank)),
        lambda: dist.broadcast(x, 0, group=s.group),
        lambda i, all_of_it: holds(x, value(i, 0), all_of_it),
    )


def parts_hold(tensor: torch.Tensor, expected: list[int], all_of_it: bool) -> bool:
    parts = tensor.view(len(expected), -1)
    return all(holds(part, e, all_of_it) for part, e in zip(parts, expected, strict=True))


def all_gather(s: Setting) -> Steps:
    x = torch.empty(max(1, s.count // s.size), dtype=s.dtype)
    y = torch.empty(x.numel() * s.size, dtype=s.dtype)
    return Steps(
        lambda i: x.fill_(value(i, s.rank)),
        lambda: dist.all_gather_into_tensor(y, x, group=s.group),
        lambda i, all_of_it: parts_hold(y, [value(i, r) for r in range(s.size)], all_of_it),
    )


def reduce_scatter(s: Setting) -> Steps:
    y = torch.empty(max(1, s.count // s.size), dtype=s.dtype)
    x = torch.empty(y.numel() * s.size, dtype=s.dtype)
    return Steps(
        lambda i: x.fill_(value(i, s.rank)),
        lambda: dist.reduce_scatter_tensor(y, x, group=s.group),
        lambda i, all_of_it: holds(y, sum(value(i, r) for r in range(s.size)), all_of_it),
    )


def all_to_all(s: Setting) -> Steps:
    x = torch.empty(max(1, s.count // s.size) * s.size, dtype=s.dtype)
    y = torch.empty_like(x)
    return Steps(
        lambda i: x.fill_(value(i, s.rank)),
        lambda: dist.all_to_all_single(y, x, group=s.group),
        lambda i, all_of_it: parts_hold(y, [value(i, r) for r in range(s.size)], all_of_it),
    )


def ping_pong(s: Setting) -> Steps:
    """To the next rank and back; half of it is one message. Ranks beyond the first two rest."""
    x = torch.empty(s.count, dtype=s.dtype)

    def call() -> None:
        if s.rank == 0:
            dist.send(x, 1, group=s.group)
            dist.recv(x, 1, group=s.group)
        elif s.rank == 1:
            dist.recv(x, 0, group=s.group)
            dist.send(x, 0, group=s.group)

    return Steps(
        lambda i: x.fill_(value(i, s.rank)),
        call,
        lambda i, all_of_it: s.rank > 1 or holds(x, value(i, 0), all_of_it),
    )


def barrier(s: Setting) -> Steps:
    return Steps(
        lambda i: None,
        lambda: dist.barrier(group=s.group),
        lambda i, all_of_it: True,
    )


OPERATIONS: dict[str, Callable[[Setting], Steps]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "ping_pong": ping_pong,
    "barrier": barrier,
}
