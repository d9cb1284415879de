"""The operations that `torch-ccl bench` measures: one row each.

A row makes, for one rank, three functions: `fill(i)` writes fresh values before iteration i,
`call()` is what is timed, and `is_right(i, all_of_it)` looks at the result, at its ends or at every
element. Values are small whole numbers, exact in every dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

import torch_ccl


@dataclass
class Setting:
    """Where and on what an operation runs. `count` is elements of the whole tensor."""

    rank: int
    size: int
    count: int
    dtype: torch.dtype
    group: dist.ProcessGroup
    shared: bool = False  # tensors of torch_ccl.empty() instead of ordinary ones

    def tensor(self, count: int) -> torch.Tensor:
        empty = torch_ccl.empty if self.shared else torch.empty
        return empty(count, dtype=self.dtype)


@dataclass
class Steps:
    fill: Callable[[int], None]
    call: Callable[[], None]
    is_right: Callable[[int, bool], bool]


def value(i: int, rank: int) -> int:
    return (i * 5 + rank * 3) % 11


class Numbers:
    """The elements of a tensor, written and read with next to no time of torch's or Python's.

    What stands between two calls makes the ranks drift apart, and the drift is then measured.
    """

    def __init__(self, tensor: torch.Tensor):
        self._dtype = tensor.dtype
        # Of complex128 both parts get the same value.
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
        self._integers = integers[tensor.dtype.itemsize]
        self._codes = tensor.view(self._integers).numpy()  # in the tensor's own memory
        self._code_of: dict[int, int] = {}

    def _code(self, number: int) -> int:
        if number not in self._code_of:
            element = torch.full((1,), number, dtype=self._dtype)
            self._code_of[number] = element.view(self._integers)[0].item()
        return self._code_of[number]

    def fill(self, number: int) -> None:
        self._codes.fill(self._code(number))

    def are(self, number: int, all_of_them: bool) -> bool:
        code = self._code(number)
        if all_of_them:
            return bool((self._codes == code).all())
        return self._codes[0] == code and self._codes[-1] == code


def all_reduce(s: Setting) -> Steps:
    x = s.tensor(s.count)
    numbers = Numbers(x)
    return Steps(
        lambda i: numbers.fill(value(i, s.rank)),
        lambda: dist.all_reduce(x, group=s.group),
        lambda i, all_of_it: numbers.are(sum(value(i, r) for r in range(s.size)), all_of_it),
    )


def broadcast(s: Setting) -> Steps:
    x = s.tensor(s.count)
    numbers = Numbers(x)
    return Steps(
        lambda i: numbers.fill(value(i, s.rank)),
        lambda: dist.broadcast(x, 0, group=s.group),
        lambda i, all_of_it: numbers.are(value(i, 0), all_of_it),
    )


def parts_are_right(y: torch.Tensor, s: Setting) -> Callable[[int, bool], bool]:
    """One part from each rank, with that rank's value."""
    parts = [Numbers(part) for part in y.view(s.size, -1)]
    return lambda i, all_of_it: all(
        part.are(value(i, rank), all_of_it) for rank, part in enumerate(parts)
    )


def all_gather(s: Setting) -> Steps:
    x = s.tensor(max(1, s.count // s.size))
    y = s.tensor(x.numel() * s.size)
    numbers = Numbers(x)
    return Steps(
        lambda i: numbers.fill(value(i, s.rank)),
        lambda: dist.all_gather_into_tensor(y, x, group=s.group),
        parts_are_right(y, s),
    )


def reduce_scatter(s: Setting) -> Steps:
    y = s.tensor(max(1, s.count // s.size))
    x = s.tensor(y.numel() * s.size)
    numbers, results = Numbers(x), Numbers(y)
    return Steps(
        lambda i: numbers.fill(value(i, s.rank)),
        lambda: dist.reduce_scatter_tensor(y, x, group=s.group),
        lambda i, all_of_it: results.are(sum(value(i, r) for r in range(s.size)), all_of_it),
    )


def all_to_all(s: Setting) -> Steps:
    x = s.tensor(max(1, s.count // s.size) * s.size)
    y = s.tensor(x.numel())
    numbers = Numbers(x)
    return Steps(
        lambda i: numbers.fill(value(i, s.rank)),
        lambda: dist.all_to_all_single(y, x, group=s.group),
        parts_are_right(y, s),
    )


def ping_pong(s: Setting) -> Steps:
    """To the next rank and back; half of it is one message. Ranks beyond the first two rest."""
    x = s.tensor(s.count)
    numbers = Numbers(x)

    def call() -> None:
        if s.rank == 0:
            dist.send(x, 1, group=s.group)
            dist.recv(x, 1, group=s.group)
        elif s.rank == 1:
            dist.recv(x, 0, group=s.group)
            dist.send(x, 0, group=s.group)

    return Steps(
        lambda i: numbers.fill(value(i, s.rank)),
        call,
        lambda i, all_of_it: s.rank > 1 or numbers.are(value(i, 0), all_of_it),
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
