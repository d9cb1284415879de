"""One collective call of torch on one rank, with its tensors and their expected results.

A Case describes a call. It is determined by a seed, so all ranks know the tensors of every rank.
An Exchange is the call on one rank: the constructor creates the tensors; issue(), wait() and
verify() are separate steps, so that several exchanges can be in flight. An Operation is the kind of
call; torch_operations.py lists them all.
"""

import contextlib
import random
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import _coalescing_manager

from support.torch_layouts import Placed, layouts_of, room, showable
from support.torch_reference import KINDS, reduce_op, reduced, values_of

CPU = torch.device("cpu")
POLL_BOUND_S = 50


@dataclass(frozen=True)
class Case:
    seed: str  # of its values and layouts; names the case, too
    operation: str
    dtype: torch.dtype
    reduction: str | None
    size: int
    shape: tuple
    interface: str  # "dist": functions, "group": methods of the group, "backend": of the backend
    asynchronous: bool
    root: int
    flavour: str
    tag: int = 0

    def __str__(self):
        how = f"{'async' if self.asynchronous else 'sync'} by {self.interface}"
        name = str(self.dtype).removeprefix("torch.")
        what = f"{self.operation} {self.reduction or ''} {name}".replace("  ", " ")
        return f"{self.seed}: {what} {self.shape} {how} root {self.root} {self.flavour}"


@dataclass(frozen=True)
class Operation:
    prepare: Callable[["Exchange"], None]
    reduces: bool = False
    same_everywhere: bool = False  # all ranks must end with the same bits
    interfaces: tuple = ("dist", "group", "backend")


def poll(work) -> None:
    """A caller that only polls sees the completion, and then the results are valid."""
    end = time.monotonic() + POLL_BOUND_S
    while not work.is_completed():
        assert time.monotonic() < end, "does not complete without wait()"
        time.sleep(0.0001)


WAYS_TO_WAIT = {
    "wait": lambda work: work.wait(),
    "poll": poll,
    "future": lambda work: work.get_future().wait(),
}


class Exchange:
    def __init__(self, case: Case, operation: Operation, rank: int, group):
        self.case, self.rank, self.group = case, rank, group
        self._is_same_everywhere = operation.same_everywhere
        self.asynchronous = case.asynchronous
        self.size = case.size
        self.factors = [self.choice(f"factor {r}", self._factors()) for r in range(case.size)]
        self.op = reduce_op(case.reduction, self._factor()) if case.reduction else None
        self.layouts: dict[str, str] = {}
        self._checks, self._results, self._call, self._works = [], [], None, []
        operation.prepare(self)

    def issue(self) -> None:
        works = self._call()
        self._works = works if isinstance(works, list) else [works]

    def wait(self) -> None:
        """A synchronous call has completed when it returns."""
        wait = WAYS_TO_WAIT[self.choice(f"way to wait {self.rank}", list(WAYS_TO_WAIT))]
        for work in self._works:
            if work is not None and self.asynchronous:
                wait(work)
            assert work is None or work.is_completed(), "returned before it was complete"

    def raise_errors(self) -> None:
        """Of a failed call; is_completed() is true of it, too."""
        for work in self._works:
            if work is not None:
                work.wait()

    def verify(self) -> int:
        """Checks the results. Returns a number that must be the same on all ranks if the operation
        gives all of them the same bits."""
        for check in self._checks:
            check()
        if not self._is_same_everywhere:
            return 0
        return zlib.crc32(b"".join(x.found().numpy().tobytes() for x in self._results))

    # ---- values that the seed determines

    def choice(self, what: str, choices: list):
        return random.Random(f"{self.case.seed}/{what}").choice(choices)

    def _factors(self) -> list[float]:
        integer = KINDS[self.case.dtype] == "integer"
        return [2.0, -3.0, 5.0, 1.0] if integer else [0.5, -2.0, 1 / 3, 1e3]

    def _factor(self):
        """Returns the factor of this rank, as a number or as a tensor."""
        factor = self.factors[self.rank]
        return self.choice("kind of factor", [factor, torch.tensor(factor, dtype=torch.float64)])

    def layout(self, rank: int, role: str, shape) -> str:
        lazy, written = self.case.interface == "backend", not role.startswith("in")
        choices = layouts_of(shape, self.case.dtype, written=written, lazy=lazy)
        return self.choice(f"layout {rank} {role}", choices)

    def values(self, rank: int, role: str, shape) -> torch.Tensor:
        """Returns a rank's tensor before the call; roles that start with "in" are only read."""
        generator = torch.Generator()
        generator.manual_seed(zlib.crc32(f"{self.case.seed}/{rank}/{role}".encode()))
        values = values_of(generator, tuple(shape), self.case.dtype, self.case.flavour)
        return showable(values, self.layout(rank, role, shape))

    def everyones(self, role: str, shape) -> list[torch.Tensor]:
        return [self.values(r, role, shape) for r in range(self.size)]

    def reduced(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return reduced(inputs, self.case.reduction, self.factors)

    # ---- tensors of this rank, and their expected contents

    def _place(self, role: str, shape, make) -> Placed:
        self.layouts[role] = self.layout(self.rank, role, shape)
        return make(self.layouts[role])

    def input(self, role: str, shape) -> torch.Tensor:
        values = self.values(self.rank, role, shape)
        placed = self._place(role, shape, lambda layout: Placed(values, layout))
        self._checks.append(placed.check_unchanged)
        return placed.tensor

    def changed(self, role: str, shape, expected: torch.Tensor) -> torch.Tensor:
        values = self.values(self.rank, role, shape)
        return self._expect(self._place(role, shape, lambda where: Placed(values, where)), expected)

    def output(self, role: str, shape, expected: torch.Tensor) -> torch.Tensor:
        dtype = self.case.dtype
        return self._expect(
            self._place(role, shape, lambda layout: room(shape, dtype, layout)), expected
        )

    def add_check(self, check) -> None:
        """verify() calls `check`, which raises if a result is wrong."""
        self._checks.append(check)

    def _expect(self, placed: Placed, expected: torch.Tensor) -> torch.Tensor:
        moved = self.case.reduction is None
        self._results.append(placed)
        self._checks.append(lambda: placed.check(expected, exactly=moved))
        return placed.tensor

    # ---- the call

    def call(self, function, method) -> None:
        """`function` is of torch.distributed; `method` takes the group or the backend."""
        if self.case.interface == "dist":
            self._call = function
        elif self.case.interface == "group":
            self._call = lambda: method(self.group)
        else:
            self._call = lambda: method(self.group._get_backend(CPU))

    def options(self, kind: str, **fields):
        options = getattr(c10d, kind + "Options")()
        options.asyncOp = self.asynchronous
        for name, value in fields.items():
            setattr(options, name, value)
        return options

    @property
    def how(self) -> dict:
        return {"group": self.group, "async_op": self.asynchronous}

    @contextlib.contextmanager
    def coalesced(self, works: list):
        with _coalescing_manager(self.group, async_ops=self.asynchronous) as manager:
            yield
        works += manager.works
