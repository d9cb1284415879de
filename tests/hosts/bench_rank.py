"""A rank of bench.py: answers the requests that it receives on a pipe, until it receives None.

python bench_rank.py <descriptor> time gloo,ccl    request: (Case, backend); reply: seconds
python bench_rank.py <descriptor> start ccl        request: "start"; reply: see HostStartHandler
"""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
import torch_ccl  # noqa: F401
from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.operations import (
    OPERATIONS,
    Arguments,
    Elements,
    Operation,
    input_value,
    sum_of_inputs,
)
from torch_ccl.cli.bench.ranks import answer_requests
from torch_ccl.cli.bench.timing import time_case

TIMEOUT = timedelta(seconds=120)
#: Relative error of a sum that was rounded between hosts. The tests check the exact bound.
ROUNDING = 0.05


def all_reduce_rounded(a: Arguments) -> Operation:
    """Like all_reduce, but the result may have a rounding error."""
    x = a.tensor(a.count)
    elements = Elements(x)

    def is_correct(i: int, full: bool) -> bool:
        expected = sum_of_inputs(i, a.size)
        checked = x if full else x[:: max(1, a.count - 1)]
        return bool(((checked - expected).abs() <= ROUNDING * expected).all())

    return Operation(
        lambda i: elements.fill(input_value(i, a.rank)),
        lambda: dist.all_reduce(x, group=a.group),
        is_correct,
    )


OPERATIONS["all_reduce_rounded"] = all_reduce_rounded


class CountingStore(dist.Store):
    """Forwards every operation to another store, and counts them.

    Polls of `check` for the same keys count once: their number depends on time.
    """

    def __init__(self, store: dist.Store):
        super().__init__()
        self._store = store
        self._checked: set[str] = set()
        self.operations = 0


def _counted(name: str) -> Callable:
    def operation(self: CountingStore, *args):
        if name != "check" or str(args) not in self._checked:
            self.operations += 1
            self._checked.add(str(args))
        return getattr(self._store, name)(*args)

    return operation


for _name in ("set", "get", "add", "check", "wait", "compare_set", "delete_key", "num_keys"):
    setattr(CountingStore, _name, _counted(_name))
for _name in ("append", "multi_get", "multi_set"):
    setattr(CountingStore, _name, _counted(_name))


class HostTimingHandler:
    """Times a case on a group of one of the backends."""

    def __init__(self, backends: list[str]):
        dist.init_process_group(backends[0], timeout=TIMEOUT)
        self._groups = {name: dist.new_group(backend=name, timeout=TIMEOUT) for name in backends}

    def __call__(self, request: tuple[Case, str]) -> list[float]:
        case, backend = request
        return time_case(case, backend, self._groups[backend], dist.get_rank())


class HostStartHandler:
    """Creates a group and runs an all_reduce. Reply: the time of the call of init_process_group,
    the time at which the all_reduce ended, and the number of operations on the store."""

    def __init__(self, backends: list[str]):
        store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
        counting = CountingStore(store)
        start = time.monotonic()  # the same clock in all processes of the machine
        dist.init_process_group(
            backends[0], store=counting, rank=rank, world_size=size, timeout=TIMEOUT
        )
        x = torch.ones(1)
        dist.all_reduce(x)
        self._reply = (start, time.monotonic(), counting.operations)
        if x.item() != size:
            raise AssertionError(f"{backends[0]}: the first sum is {x.item()}, not {size}")

    def __call__(self, _request: str) -> tuple[float, float, int]:
        return self._reply


def main() -> None:
    descriptor, task, backends = sys.argv[1:]
    handler = {"time": HostTimingHandler, "start": HostStartHandler}[task]
    answer_requests(Connection(int(descriptor)), lambda: handler(backends.split(",")))


if __name__ == "__main__":
    main()
