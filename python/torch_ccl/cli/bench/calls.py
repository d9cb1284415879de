"""`torch-ccl bench --calls`: how long a small call takes, with and without fast calls.

Two ranks call one function in a loop, for each alternation on torch's `fake` backend, which
exchanges nothing, on ccl, and on ccl with fast calls. A figure is the time of the loop divided by
the number of calls, on the slower rank.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from torch_ccl.cli.bench.progress import Step, progress_bar
from torch_ccl.cli.bench.ranks import BenchProcess, RankConnections, start_ranks
from torch_ccl.cli.bench.report import BackgroundLoad, Figure, Goal, print_figures, write_json
from torch_ccl.cli.bench.summary import Summary, ratios, size_text

if TYPE_CHECKING:
    import torch.distributed as dist

RANKS = 2
SIZES = (8, 4 << 10)
CALLS = 2000  # in a loop, after a tenth of them to warm up
FAST = "ccl, fast calls"
BACKENDS = ("fake", "ccl", FAST)
RATIO_GOAL = Goal("<=", 0.8)  # to `fake`
FUNCTIONAL_GOAL = Goal("<=", 15)
NAMES = (
    "all_reduce",
    "all_gather_single",
    "reduce_scatter_single",
    "broadcast",
    "all_to_all_single",
    "barrier",
    "functional all_reduce, wait",
)
WITH_RATIO_GOAL = ("all_reduce", "all_gather_single", "broadcast", "barrier")


class CallHandler:
    """Times one call on one of BACKENDS."""

    def __init__(self, process: BenchProcess):
        import torch.distributed as dist
        import torch.testing._internal.distributed.fake_pg  # noqa: F401

        process.init_process_group("gloo")
        self._size = process.size
        self._groups = {name: dist.new_group(backend=name) for name in ("fake", "ccl")}

    def __call__(self, request: tuple[str, int, str, int]) -> float:
        """Microseconds per call."""
        import torch_ccl

        name, size_bytes, backend, calls = request
        torch_ccl.fast_calls(backend == FAST)
        call = self._call(name, size_bytes // 4, self._groups[backend.split(",")[0]])
        for _ in range(calls // 10):
            call()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls * 1e6

    def _call(self, name: str, count: int, group: "dist.ProcessGroup") -> Callable[[], object]:
        """`count` is the elements of the largest tensor."""
        import torch
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        x, y = torch.zeros(count), torch.zeros(count)
        part = torch.zeros(max(1, count // self._size))
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

        def functional_all_reduce() -> object:
            result = functional.all_reduce(x, "sum", group)
            wait = getattr(result, "wait", None)  # as in DTensor, which waits for an async tensor
            return wait() if wait else result

        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(x, group=group),
            "all_gather_single": lambda: gather(y, part, group=group),
            "reduce_scatter_single": lambda: scatter(part, y, group=group),
            "broadcast": lambda: dist.broadcast(x, 0, group=group),
            "all_to_all_single": lambda: dist.all_to_all_single(y, x, group=group),
            "barrier": lambda: dist.barrier(group=group),
            "functional all_reduce, wait": functional_all_reduce,
        }
        return calls[name]


def time_calls(
    ranks: RankConnections, name: str, size_bytes: int, alternations: int
) -> list[Figure]:
    us: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(alternations):
        for backend, values in us.items():
            values.append(max(ranks.request((name, size_bytes, backend, CALLS))))
    title = name if name == "barrier" else f"{name}, {size_text(size_bytes)}"
    figures = [Figure(f"{title}: {b}", Summary.of(values), "us") for b, values in us.items()]
    if name.startswith("functional"):
        figures[-1] = Figure(f"{title}: {FAST}", Summary.of(us[FAST]), "us", FUNCTIONAL_GOAL)
    goal = RATIO_GOAL if name in WITH_RATIO_GOAL else None
    ratio = Summary.of(ratios(us[FAST], us["fake"]))
    return [*figures, Figure(f"{title}: fast calls / fake", ratio, "x", goal)]


def measure(alternations: int, step: Step) -> list[Figure]:
    figures = []
    with start_ranks(RANKS, CallHandler) as ranks:
        for name in NAMES:
            for size_bytes in SIZES[:1] if name == "barrier" else SIZES:
                with step(name):
                    figures += time_calls(ranks, name, size_bytes, alternations)
    return figures


def bench_calls(alternations: int, goals: bool, json_file: Path | None) -> None:
    load = BackgroundLoad()
    with progress_bar(len(NAMES) * len(SIZES) - 1) as step:
        figures = measure(alternations, step)
    print_figures(f"small calls, {RANKS} ranks", figures, load, goals)
    if json_file:
        rows = [figure.as_json(goals) for figure in figures]
        write_json(json_file, rows, alternations=alternations, cpus_busy_elsewhere=load.cpus())
