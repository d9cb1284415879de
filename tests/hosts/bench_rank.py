"""A rank of bench.py: answers the requests that come through the pipe it is given.

python bench_rank.py <descriptor> time gloo,ccl    a request is (Case, backend)
python bench_rank.py <descriptor> start ccl        a request is None: when did the first sum end?
"""

import faulthandler
import sys
import time
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
import torch_ccl  # noqa: F401
from torch_ccl.cli.operations import OPERATIONS, Numbers, Setting, Steps, value
from torch_ccl.cli.processes import BOUND_S, Failure
from torch_ccl.cli.timing import Case, time_case

TIMEOUT = timedelta(seconds=120)
#: The part of a sum that may be lost on the wire; what exactly is for the tests.
ROUNDING = 0.05


def all_reduce_rounded(s: Setting) -> Steps:
    """As all_reduce, but the result may be a little off."""
    x = s.tensor(s.count)
    numbers = Numbers(x)

    def is_right(i: int, all_of_it: bool) -> bool:
        right = sum(value(i, rank) for rank in range(s.size))
        some = x if all_of_it else x[:: max(1, s.count - 1)]
        return bool(((some - right).abs() <= ROUNDING * right).all())

    return Steps(
        lambda i: numbers.fill(value(i, s.rank)),
        lambda: dist.all_reduce(x, group=s.group),
        is_right,
    )


OPERATIONS["all_reduce_rounded"] = all_reduce_rounded


class CountingStore(dist.Store):
    """Passes every operation on to another store, and counts them.

    Asking for the same key again is the same operation: how often depends on how long it takes.
    """

    def __init__(self, store: dist.Store):
        super().__init__()
        self._store = store
        self._asked_for = set()
        self.operations = 0


def _counted(name: str):
    def operation(self: CountingStore, *args):
        if name != "check" or str(args) not in self._asked_for:
            self.operations += 1
            self._asked_for.add(str(args))
        return getattr(self._store, name)(*args)

    return operation


for _name in ("set", "get", "add", "check", "wait", "compare_set", "delete_key", "num_keys"):
    setattr(CountingStore, _name, _counted(_name))
for _name in ("append", "multi_get", "multi_set"):
    setattr(CountingStore, _name, _counted(_name))


class Timer:
    """Has a group of each backend over one store."""

    def __init__(self, backends: list[str]):
        dist.init_process_group(backends[0], timeout=TIMEOUT)
        self._groups = {name: dist.new_group(backend=name, timeout=TIMEOUT) for name in backends}

    def __call__(self, request: tuple[Case, str]) -> list[float]:
        case, backend = request
        return time_case(case, backend, self._groups[backend], dist.get_rank())


class Starter:
    """Makes a group and runs the first operation on it. Answers when that began, when it had ended
    (by the machine's monotonic clock) and how many operations on the store it took."""

    def __init__(self, backends: list[str]):
        store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
        counting = CountingStore(store)
        begun = time.monotonic()
        dist.init_process_group(
            backends[0], store=counting, rank=rank, world_size=size, timeout=TIMEOUT
        )
        x = torch.ones(1)
        dist.all_reduce(x)
        self._answer = (begun, time.monotonic(), counting.operations)
        if x.item() != size:
            raise AssertionError(f"the first sum on {backends[0]} is {x.item()}, not {size}")

    def __call__(self, _request: None) -> tuple[float, float, int]:
        return self._answer


def main() -> None:
    descriptor, task, backends = sys.argv[1:]
    pipe = Connection(int(descriptor))
    warnings.simplefilter("ignore", FutureWarning)
    faulthandler.dump_traceback_later(BOUND_S, exit=True)
    try:
        answer = {"time": Timer, "start": Starter}[task](backends.split(","))
        pipe.send("ready")
        while (request := pipe.recv()) != "end":
            faulthandler.dump_traceback_later(BOUND_S, exit=True)
            pipe.send(answer(request))
    except BaseException:
        pipe.send(Failure(traceback.format_exc()))
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
