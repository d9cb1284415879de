"""The timing loop of `torch-ccl bench`, one for all backends, and the ranks that it runs on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch_ccl.cli.processes import Place, Processes, processes

WARM_UP = 3
#: Behind the name of a backend: with tensors of torch_ccl.empty().
SHARED = ":shared"


@dataclass(frozen=True)
class Case:
    op: str
    bytes: int
    dtype: str
    ranks: int

    def iterations(self) -> int:
        if self.bytes <= 64 << 10:
            return 200
        return 50 if self.bytes <= 1 << 20 else 6


def time_case(case: Case, backend: str, group, rank: int) -> list[float]:
    """Seconds of each iteration on this rank. Raises if a result is wrong."""
    import torch

    from torch_ccl.cli.operations import OPERATIONS, Setting

    dtype = getattr(torch, case.dtype)
    count = max(1, case.bytes // dtype.itemsize)
    shared = backend.endswith(SHARED)
    steps = OPERATIONS[case.op](Setting(rank, case.ranks, count, dtype, group, shared))
    times = []
    for i in range(WARM_UP + case.iterations()):
        steps.fill(i)
        start = time.perf_counter_ns()
        steps.call()
        times.append((time.perf_counter_ns() - start) * 1e-9)
        last = i + 1 == WARM_UP + case.iterations()
        if backend != "fake" and not steps.is_right(i, last):
            raise AssertionError(f"{backend}: wrong result of {case} on rank {rank}, iteration {i}")
    return times[WARM_UP:]


class Timer:
    """A rank that times a case on one of several backends."""

    def __init__(self, place: Place, backends: list[str]):
        import torch.distributed as dist

        if "fake" in backends:
            import torch.testing._internal.distributed.fake_pg  # noqa: F401
        place.join("gloo")
        self._rank = place.rank
        names = dict.fromkeys(backend.removesuffix(SHARED) for backend in backends)
        self._groups = {name: dist.new_group(backend=name) for name in names}

    def __call__(self, request: tuple[Case, str]) -> list[float]:
        case, backend = request
        group = self._groups[backend.removesuffix(SHARED)]
        return time_case(case, backend, group, self._rank)


class Ranks:
    """Processes that time a case when asked."""

    def __init__(self, ranks: Processes):
        self._ranks = ranks

    def time(self, case: Case, backend: str) -> list[float]:
        """For each iteration the maximum over the ranks, in seconds."""
        per_rank = self._ranks.ask((case, backend))
        half = 0.5 if case.op == "ping_pong" else 1.0
        return [half * max(times) for times in zip(*per_rank, strict=True)]


@contextmanager
def running_ranks(ranks: int, backends: list[str]) -> Iterator[Ranks]:
    with processes(ranks, Timer, backends) as started:
        yield Ranks(started)
