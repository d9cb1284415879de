"""`torch-ccl bench --footprint`: what the backend costs besides the data transfer.

overhead   an all_reduce of 8 B on 2 ranks, less the same call on torch's `fake` backend
zero copy  collectives on tensors of torch_ccl.empty(), compared with ordinary tensors
waiting    CPU time of a rank that waits 10 s for its peer
memory     growth of the proportional set size (Pss) on 8 ranks: after init, and after every
           operation and size of the goals ran once and its tensors were freed. `fake` shows
           torch's own share.
start-up   init_process_group and the first barrier, in new processes with one TCPStore
"""

import statistics
from pathlib import Path

from torch.distributed import TCPStore

from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.footprint_ranks import MemoryHandler, StartHandler, WaitHandler
from torch_ccl.cli.bench.progress import Step, progress_bar
from torch_ccl.cli.bench.ranks import start_ranks
from torch_ccl.cli.bench.report import BackgroundLoad, Figure, Goal, print_figures, write_json
from torch_ccl.cli.bench.summary import Summary, ratios, size_text
from torch_ccl.cli.bench.timing import ZERO_COPY, timing_ranks

WAIT_S = 10.0
WAITING_OPERATIONS = ("recv", "barrier", "all_reduce")
MEMORY_BACKENDS = ("ccl", "gloo", "fake")
MEMORY_STEPS = (  # request, name, goal in MiB
    ("init", "after init", Goal("<=", 16)),
    ("run", "after every size of the goals", Goal("<=", 24)),
)
START_SIZES = (2, 8)
START_BACKENDS = ("ccl", "gloo")
ZERO_COPY_CASES = {
    Case("all_reduce", 1 << 20, "float32", 2): None,
    Case("all_reduce", 16 << 20, "float32", 2): Goal("<=", 0.5),
    Case("all_reduce", 64 << 20, "float32", 2): None,
    Case("reduce_scatter", 16 << 20, "float32", 2): None,
    Case("all_gather", 16 << 20, "float32", 2): None,
    Case("all_to_all", 16 << 20, "float32", 2): None,
    Case("broadcast", 16 << 20, "float32", 2): None,
}


def overhead(alternations: int, step: Step) -> list[Figure]:
    case = Case("all_reduce", 8, "float32", 2)
    us: dict[str, list[float]] = {"ccl": [], "fake": []}
    with timing_ranks(case.ranks, list(us)) as ranks, step("overhead"):
        for _ in range(3 * alternations):
            for backend, medians in us.items():
                medians.append(statistics.median(ranks.time(case, backend)) * 1e6)
    difference = [ours - fake for ours, fake in zip(us["ccl"], us["fake"], strict=True)]
    name = f"{case.op}, {size_text(case.bytes)}, {case.ranks} ranks"
    return [
        Figure(f"{name}: ccl", Summary.of(us["ccl"]), "us"),
        Figure(f"{name}: fake", Summary.of(us["fake"]), "us"),
        Figure(f"{name}: ccl - fake", Summary.of(difference), "us", Goal("<=", 3.0)),
    ]


def zero_copy(alternations: int, step: Step) -> list[Figure]:
    figures = []
    with timing_ranks(2, ["ccl"]) as ranks:
        for case, goal in ZERO_COPY_CASES.items():
            name = f"{case.op}, {size_text(case.bytes)}, {case.ranks} ranks: zero copy / ordinary"
            ordinary, zero = [], []
            with step(name):
                for _ in range(alternations):
                    ordinary.append(statistics.median(ranks.time(case, "ccl")))
                    zero.append(statistics.median(ranks.time(case, "ccl" + ZERO_COPY)))
            figures.append(Figure(name, Summary.of(ratios(zero, ordinary)), "x", goal))
    return figures


def waiting(_alternations: int, step: Step, wait_s: float = WAIT_S) -> list[Figure]:
    figures = []
    with start_ranks(2, WaitHandler, "ccl") as ranks:
        for op in WAITING_OPERATIONS:
            name = f"waiting {wait_s:g} s in {op}"
            with step(name):
                percent = ranks.request((op, wait_s))[0]
            figures.append(Figure(name, Summary.of([percent]), "% of a CPU", Goal("<", 2)))
    return figures


def growth_mib(before: list[dict[str, int]], after: list[dict[str, int]]) -> dict[str, float]:
    """The growth of the rank that grew most, by kind of memory: a goal per rank holds for each."""
    return {
        kind: max((a[kind] - b[kind]) / 1024 for a, b in zip(after, before, strict=True))
        for kind in after[0]
    }


def memory_of(backend: str, size: int) -> list[Figure]:
    figures = []
    with start_ranks(size, MemoryHandler, backend) as ranks:
        before = ranks.request("read")
        for request, when, goal in MEMORY_STEPS:
            ranks.request(request)
            growth = growth_mib(before, ranks.request("read"))
            figures.append(
                Figure(
                    f"Pss, {size} ranks, {when}: {backend}",
                    Summary.of([growth.pop("Pss")]),
                    "MiB",
                    goal if backend == "ccl" else None,
                    {"worst_rank_mib": growth},
                )
            )
    return figures


def memory(_alternations: int, step: Step, size: int = 8) -> list[Figure]:
    figures = []
    for backend in MEMORY_BACKENDS:
        with step(f"memory, {size} ranks: {backend}"):
            figures += memory_of(backend, size)
    return figures


def start_ms(size: int, backend: str) -> float:
    """The time from the first rank's init_process_group to the end of the last rank's barrier."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with start_ranks(size, StartHandler, store.port) as ranks:
        starts, ends = zip(*ranks.request(backend), strict=True)
    return float(max(ends) - min(starts)) * 1e3


def start_up(alternations: int, step: Step, sizes: tuple[int, ...] = START_SIZES) -> list[Figure]:
    figures = []
    for size in sizes:
        name = f"init and first barrier, {size} ranks"
        ms: dict[str, list[float]] = {backend: [] for backend in START_BACKENDS}
        for _ in range(alternations):
            for backend, values in ms.items():
                with step(f"{name}: {backend}"):
                    values.append(start_ms(size, backend))
        figures += [Figure(f"{name}: {b}", Summary.of(values), "ms") for b, values in ms.items()]
        ratio = Summary.of(ratios(ms["gloo"], ms["ccl"]))
        figures.append(Figure(f"{name}: gloo / ccl", ratio, "x", Goal(">=", 1.0)))
    return figures


def bench_footprint(alternations: int, goals: bool, json_file: Path | None) -> None:
    steps = 1 + len(ZERO_COPY_CASES) + len(WAITING_OPERATIONS) + len(MEMORY_BACKENDS)
    steps += len(START_SIZES) * len(START_BACKENDS) * alternations
    load = BackgroundLoad()
    figures: list[Figure] = []
    with progress_bar(steps) as step:
        for measure in (overhead, zero_copy, waiting, memory, start_up):
            figures += measure(alternations, step)
    print_figures("footprint", figures, load, goals)
    if json_file:
        rows = [figure.as_json(goals) for figure in figures]
        write_json(json_file, rows, alternations=alternations, cpus_busy_elsewhere=load.cpus())
