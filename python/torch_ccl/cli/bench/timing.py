"""The timing loop, the same for every backend, and the ranks that run it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.ranks import BenchProcess, RankConnections, start_ranks

if TYPE_CHECKING:
    import torch.distributed as dist

WARM_UP = 3
#: After the name of a backend: tensors of torch_ccl.empty().
ZERO_COPY = ":zero_copy"


def time_case(case: Case, backend: str, group: "dist.ProcessGroup", rank: int) -> list[float]:
    """Seconds of each iteration on this rank. Raises if a result is wrong."""
    import torch

    from torch_ccl.cli.bench.operations import OPERATIONS, Arguments

    dtype = getattr(torch, case.dtype)
    count = max(1, case.bytes // dtype.itemsize)
    zero_copy = backend.endswith(ZERO_COPY)
    operation = OPERATIONS[case.op](Arguments(rank, case.ranks, count, dtype, group, zero_copy))
    times = []
    for i in range(WARM_UP + case.iterations):
        operation.fill(i)
        start = time.perf_counter_ns()
        operation.call()
        times.append((time.perf_counter_ns() - start) * 1e-9)
        last = i + 1 == WARM_UP + case.iterations
        if backend != "fake" and not operation.is_correct(i, last):
            raise AssertionError(f"{backend}: wrong result of {case} on rank {rank}, iteration {i}")
    return times[WARM_UP:]


class TimingHandler:
    """Times a case on one of several backends."""

    def __init__(self, process: BenchProcess, backends: list[str]):
        import torch.distributed as dist

        if "fake" in backends:
            import torch.testing._internal.distributed.fake_pg  # noqa: F401
        process.init_process_group("gloo")
        self._rank = process.rank
        names = dict.fromkeys(backend.removesuffix(ZERO_COPY) for backend in backends)
        self._groups = {name: dist.new_group(backend=name) for name in names}

    def __call__(self, request: tuple[Case, str]) -> list[float]:
        case, backend = request
        group = self._groups[backend.removesuffix(ZERO_COPY)]
        return time_case(case, backend, group, self._rank)


class TimingRanks:
    """Ranks whose handler is a TimingHandler."""

    def __init__(self, ranks: RankConnections):
        self._ranks = ranks

    def time(self, case: Case, backend: str) -> list[float]:
        """Seconds of each iteration: the maximum over the ranks."""
        per_rank = self._ranks.request((case, backend))
        factor = 0.5 if case.op == "ping_pong" else 1.0
        return [factor * max(times) for times in zip(*per_rank, strict=True)]


@contextmanager
def timing_ranks(size: int, backends: list[str]) -> Iterator[TimingRanks]:
    with start_ranks(size, TimingHandler, backends) as ranks:
        yield TimingRanks(ranks)
