"""The operations that `torch-ccl bench` measures: one function each.

A function prepares its operation on one rank and returns three functions: `fill(i)` writes the
input of iteration i, `call()` is timed, and `is_correct(i, full)` checks the first and the last
element of the result, or with `full` every element. Values are small integers, which are exact in
every dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

import torch_ccl


@dataclass
class Arguments:
    """`count` is elements of the whole tensor."""

    rank: int
    size: int
    count: int
    dtype: torch.dtype
    group: dist.ProcessGroup | None
    zero_copy: bool = False  # tensors of torch_ccl.empty() instead of torch.empty()

    def tensor(self, count: int) -> torch.Tensor:
        empty = torch_ccl.empty if self.zero_copy else torch.empty
        return empty(count, dtype=self.dtype)


@dataclass
class Operation:
    fill: Callable[[int], None]
    call: Callable[[], object]
    is_correct: Callable[[int, bool], bool]


def input_value(iteration: int, rank: int) -> int:
    return (iteration * 5 + rank * 3) % 11


def sum_of_inputs(iteration: int, size: int) -> int:
    return sum(input_value(iteration, rank) for rank in range(size))


class Elements:
    """Writes and compares the elements of a tensor through numpy.

    torch's own calls take longer. Time between two timed calls lets the ranks drift apart, and the
    drift is then measured as part of the operation.
    """

    def __init__(self, tensor: torch.Tensor):
        self._dtype = tensor.dtype
        # Both parts of a complex128 get the same value.
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
        self._integers = integers[tensor.dtype.itemsize]
        self._array = tensor.view(self._integers).numpy()  # shares the tensor's memory
        self._patterns: dict[int, int] = {}

    def _pattern(self, value: int) -> int:
        """The bits of a value, as an integer."""
        if value not in self._patterns:
            element = torch.full((1,), value, dtype=self._dtype)
            self._patterns[value] = int(element.view(self._integers)[0].item())
        return self._patterns[value]

    def fill(self, value: int) -> None:
        self._array.fill(self._pattern(value))

    def equal(self, value: int, full: bool) -> bool:
        pattern = self._pattern(value)
        if full:
            return bool((self._array == pattern).all())
        return bool(self._array[0] == pattern and self._array[-1] == pattern)


def all_reduce(a: Arguments) -> Operation:
    x = a.tensor(a.count)
    elements = Elements(x)
    return Operation(
        lambda i: elements.fill(input_value(i, a.rank)),
        lambda: dist.all_reduce(x, group=a.group),
        lambda i, full: elements.equal(sum_of_inputs(i, a.size), full),
    )


def broadcast(a: Arguments) -> Operation:
    x = a.tensor(a.count)
    elements = Elements(x)
    return Operation(
        lambda i: elements.fill(input_value(i, a.rank)),
        lambda: dist.broadcast(x, 0, group=a.group),
        lambda i, full: elements.equal(input_value(i, 0), full),
    )


def one_block_per_rank(y: torch.Tensor, size: int) -> Callable[[int, bool], bool]:
    """Checks that block r holds the input of rank r."""
    blocks = [Elements(block) for block in y.view(size, -1)]
    return lambda i, full: all(
        block.equal(input_value(i, rank), full) for rank, block in enumerate(blocks)
    )


def all_gather(a: Arguments) -> Operation:
    x = a.tensor(max(1, a.count // a.size))
    y = a.tensor(x.numel() * a.size)
    elements = Elements(x)
    return Operation(
        lambda i: elements.fill(input_value(i, a.rank)),
        lambda: dist.all_gather_into_tensor(y, x, group=a.group),
        one_block_per_rank(y, a.size),
    )


def reduce_scatter(a: Arguments) -> Operation:
    y = a.tensor(max(1, a.count // a.size))
    x = a.tensor(y.numel() * a.size)
    inputs, results = Elements(x), Elements(y)
    return Operation(
        lambda i: inputs.fill(input_value(i, a.rank)),
        lambda: dist.reduce_scatter_tensor(y, x, group=a.group),
        lambda i, full: results.equal(sum_of_inputs(i, a.size), full),
    )


def all_to_all(a: Arguments) -> Operation:
    x = a.tensor(max(1, a.count // a.size) * a.size)
    y = a.tensor(x.numel())
    elements = Elements(x)
    return Operation(
        lambda i: elements.fill(input_value(i, a.rank)),
        lambda: dist.all_to_all_single(y, x, group=a.group),
        one_block_per_rank(y, a.size),
    )


def ping_pong(a: Arguments) -> Operation:
    """Rank 0 sends to rank 1, which sends back; half of the time is one message. Other ranks do
    nothing."""
    x = a.tensor(a.count)
    elements = Elements(x)

    def call() -> None:
        if a.rank == 0:
            dist.send(x, 1, group=a.group)
            dist.recv(x, 1, group=a.group)
        elif a.rank == 1:
            dist.recv(x, 0, group=a.group)
            dist.send(x, 0, group=a.group)

    return Operation(
        lambda i: elements.fill(input_value(i, a.rank)),
        call,
        lambda i, full: a.rank > 1 or elements.equal(input_value(i, 0), full),
    )


def barrier(a: Arguments) -> Operation:
    return Operation(
        lambda i: None,
        lambda: dist.barrier(group=a.group),
        lambda i, full: True,
    )


OPERATIONS: dict[str, Callable[[Arguments], Operation]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
    "ping_pong": ping_pong,
    "barrier": barrier,
}
