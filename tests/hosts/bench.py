"""make bench-hosts: ccl against Gloo on virtual hosts, with goals.

Both backends run in the same processes, over the same links, with the same congestion control, and
alternate. A row shows the median of the alternations and its quartiles; a goal is reached if the
worse quartile reaches it. A missed goal is reported, it is not an error. Needs root.

    .venv/bin/python tests/hosts/bench.py --rows "4x1 unlimited" --quick
"""

import argparse
import contextlib
import math
import re
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from bench_rows import ROWS, GoalResult, Measurements, Results, Row, Variant
from support.rank_environments import rank_environments
from support.virtual_hosts import Host, virtual_hosts
from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.progress import Step, progress_bar
from torch_ccl.cli.bench.ranks import EXIT_TIMEOUT_S, RankConnections
from torch_ccl.cli.bench.report import BackgroundLoad, JsonObject, write_json
from torch_ccl.cli.bench.summary import Summary, time_summary_text
from torch_ccl.cli.bench.timing import WARM_UP, TimingRanks
from torch_ccl.cli.tables import print_table

RANK_SCRIPT = str(Path(__file__).with_name("bench_rank.py"))
START_LAYOUTS = ((2, 1), (4, 1), (2, 4), (4, 4))  # hosts, ranks on each
PORT = 29500


# ---- rank processes on virtual hosts


@contextlib.contextmanager
def start_hosts(count: int, congestion_control: str) -> Iterator[list[Host]]:
    with virtual_hosts(count) as hosts:
        for host in hosts:
            if congestion_control:
                host.set_congestion_control(congestion_control)
        yield hosts


@contextlib.contextmanager
def start_ranks(
    hosts: list[Host], layout: list[int], task: str, backends: list[str], port: int, **more: str
) -> Iterator[RankConnections]:
    processes, pipes = [], []
    try:
        for host, environment in rank_environments(hosts, layout, port, **more):
            ours, theirs = Pipe()
            pipes.append(ours)
            words = [sys.executable, RANK_SCRIPT, str(theirs.fileno()), task, ",".join(backends)]
            processes.append(host.start(words, env=environment, pass_fds=[theirs.fileno()]))
            theirs.close()
        ranks = RankConnections(pipes)
        ranks.replies()  # "ready"
        yield ranks
        ranks.stop()
        for process in processes:
            process.wait(EXIT_TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()


# ---- operations


def measure_once(
    hosts: list[Host], ranks: TimingRanks, case: Case, backend: str, result: Measurements
) -> None:
    before = [host.sent_bytes() for host in hosts]
    result.seconds.append(statistics.median(ranks.time(case, backend)))
    sent = max(host.sent_bytes() - count for host, count in zip(hosts, before, strict=True))
    result.sent_bytes.append(sent / (WARM_UP + case.iterations))


def measure_row(
    hosts: list[Host],
    row: Row,
    ranks: dict[str, TimingRanks],
    variants: list[Variant],
    alternations: int,
) -> Results:
    for host in hosts:
        host.set_rate(row.rate or None)
    results = {variant.name: Measurements() for variant in variants}
    # Small messages are fast to measure, and their times vary most.
    for _ in range(alternations * (3 if row.bytes <= 64 << 10 else 1)):
        for variant in variants:
            of_variant = results[variant.name]
            case = row.case(variant)
            measure_once(hosts, ranks[variant.wire_dtype], case, variant.backend, of_variant)
    return results


def start_timing_ranks(
    stack: contextlib.ExitStack, hosts: list[Host], rows: list[Row], backends: list[str]
) -> dict[str, TimingRanks]:
    """Returns ranks by wire dtype, which is a setting of the whole process."""
    variants = [variant for row in rows for variant in row.variants(backends)]
    ranks = {}
    for wire_dtype in dict.fromkeys(variant.wire_dtype for variant in variants):
        started = start_ranks(
            hosts,
            [rows[0].ranks] * len(hosts),
            "time",
            ["ccl"] if wire_dtype else backends,
            PORT + len(ranks),
            **Variant("ccl", wire_dtype).environment,
        )
        ranks[wire_dtype] = TimingRanks(stack.enter_context(started))
    return ranks


def run_rows(
    rows: list[Row], backends: list[str], alternations: int, congestion_control: str, step: Step
) -> Iterator[tuple[Row, Results]]:
    """Rows of one layout share its processes."""
    for layout in dict.fromkeys((row.hosts, row.ranks) for row in rows):
        of_layout = [row for row in rows if (row.hosts, row.ranks) == layout]
        with (
            start_hosts(layout[0], congestion_control) as hosts,
            contextlib.ExitStack() as stack,
        ):
            ranks = start_timing_ranks(stack, hosts, of_layout, backends)
            for row in of_layout:
                with step(row.name):
                    variants = row.variants(backends)
                    results = measure_row(hosts, row, ranks, variants, alternations)
                yield row, results


# ---- start-up


@dataclass(frozen=True)
class StartResult:
    layout: str
    backend: str
    total_s: Summary  # from the start of the first process to the first all_reduce
    init_ms: Summary  # from the last rank's init_process_group to the first all_reduce
    store_operations: int  # of the rank that had most

    def as_json(self) -> JsonObject:
        def three(summary: Summary) -> list[float]:
            return [summary.low, summary.median, summary.high]

        return {
            "start": self.layout,
            "backend": self.backend,
            "seconds": three(self.total_s),
            "group_ms": three(self.init_ms),
            "store_operations": self.store_operations,
        }


def start_once(hosts: list[Host], ranks: int, backend: str) -> tuple[float, float, int]:
    """Returns seconds in total, seconds since the last init_process_group, and the operations on
    the store."""
    start = time.monotonic()
    with start_ranks(hosts, [ranks] * len(hosts), "start", [backend], PORT) as processes:
        inits, ends, operations = zip(*processes.request("start"), strict=True)
    return max(ends) - start, max(ends) - max(inits), max(operations)


def run_starts(
    layouts: list[tuple[int, int]],
    backends: list[str],
    repetitions: int,
    congestion_control: str,
    step: Step,
) -> Iterator[StartResult]:
    for count, ranks in layouts:
        layout = f"{count}x{ranks}"
        runs: dict[str, list[tuple[float, float, int]]] = {backend: [] for backend in backends}
        with start_hosts(count, congestion_control) as hosts:
            for _ in range(repetitions):
                for backend in backends:
                    with step(f"{layout} start {backend}"):
                        runs[backend].append(start_once(hosts, ranks, backend))
        for backend, values in runs.items():
            total_s, init_s, operations = zip(*values, strict=True)
            init_ms = Summary.of(seconds * 1e3 for seconds in init_s)
            yield StartResult(layout, backend, Summary.of(total_s), init_ms, max(operations))


# ---- report


def goals_of(row: Row, results: Results) -> list[GoalResult]:
    return [result for check in row.goals if (result := check(row, results))]


def print_rows(rows: list[tuple[Row, Results]], caption: str) -> None:
    columns = ["hosts x ranks", "ccl", "gloo", "", "median (quartiles)", "goal"]
    cells = []
    for row, results in rows:

        def time_of(variant: str, results: Results = results) -> str:
            return time_summary_text(results[variant].us) if variant in results else "-"

        for goal in goals_of(row, results):
            figure = goal.figure
            times = [time_of(goal.variant), time_of("gloo")]
            text = figure.summary.text(figure.unit)
            cells.append([row.name, *times, figure.name, text, figure.goal_text])
        if not goals_of(row, results):
            cells.append([row.name, time_of("ccl"), time_of("gloo"), "", "", ""])
    print_table("ccl and Gloo on virtual hosts", columns, cells, caption=caption, figures=True)


def rows_json(rows: list[tuple[Row, Results]]) -> list[JsonObject]:
    """Returns one object for each goal, and one for a row without goals."""
    lines: list[JsonObject] = []
    for row, results in rows:
        times = {name: measurements.as_json() for name, measurements in results.items()}
        goals = [
            {"way": goal.variant, **goal.figure.as_json(goals=True)}
            for goal in goals_of(row, results)
        ]
        lines += [{"row": row.name, "times": times, **goal} for goal in goals or [{}]]
    return lines


def print_starts(starts: list[StartResult]) -> None:
    columns = ["hosts x ranks", "backend", "from the start of the processes"]
    columns += ["from the last rank's init", "store operations, maximum over the ranks"]
    rows = [
        [
            start.layout,
            start.backend,
            start.total_s.text("s"),
            start.init_ms.text("ms"),
            str(start.store_operations),
        ]
        for start in starts
    ]
    print_table("start-up: until the first all_reduce has ended on every rank", columns, rows)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-hosts ARGS=...")
    parser.add_argument("--backends", default="ccl,gloo")
    parser.add_argument("--rows", default="", help="only rows whose name matches this pattern")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two alternations, one start")
    parser.add_argument("--congestion-control", default="", help="default: the machine's")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    backends = options.backends.split(",")
    alternations = 2 if options.quick else options.alternations
    repetitions = math.ceil(alternations / 2)
    rows = [row for row in ROWS if re.search(options.rows, row.name)]
    layouts = [x for x in START_LAYOUTS if re.search(options.rows, f"{x[0]}x{x[1]} start")]

    load = BackgroundLoad()
    with start_hosts(1, options.congestion_control) as hosts:
        control = hosts[0].congestion_control()
    with progress_bar(len(rows) + len(layouts) * len(backends) * repetitions) as step:
        results = list(run_rows(rows, backends, alternations, control, step))
        starts = list(run_starts(layouts, backends, repetitions, control, step))
    caption = (
        f"{alternations} alternations, {3 * alternations} of small messages; "
        f"congestion control {control}; {load}"
    )
    if results:
        print_rows(results, caption)
    if starts:
        print_starts(starts)
    if options.json:
        facts = {"alternations": alternations, "congestion_control": control}
        starts_json = [start.as_json() for start in starts]
        write_json(options.json, rows_json(results), **facts, starts=starts_json)


if __name__ == "__main__":
    main()
