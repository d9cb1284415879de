"""make bench-hosts: ccl against Gloo over virtual hosts, with the goals.

Both backends run in the same processes, over the same cables and with the same congestion control,
and take turns. A row shows medians of turns and their quartiles; a goal is reached when the worse
quartile reaches it. Nothing fails for being slow. Needs root.

    .venv/bin/python tests/hosts/bench.py --rows "4x1 unshaped" --quick
"""

import argparse
import contextlib
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.rank_environments import rank_environments
from support.virtual_hosts import Host, virtual_hosts
from torch_ccl.cli.bench import quartiles, readable_bytes, write_json
from torch_ccl.cli.processes import Processes
from torch_ccl.cli.timing import WARM_UP, Case, Ranks
from torch_ccl.cli.verdicts import Others, judged

MIB = 1 << 20
GBIT_RATE = 1e9 / 8  # bytes per second
RANK = str(Path(__file__).with_name("bench_rank.py"))
START_LAYOUTS = ((2, 1), (4, 1), (2, 4), (4, 4))


# ---- what is measured


class Turns:
    """What one way to run an operation gave: in every turn a median, and bytes out of a host."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.sent_bytes: list[float] = []  # by one call, out of the host that sent most

    def figures(self) -> dict:
        low, middle, high = quartiles([s * 1e6 for s in self.seconds])
        sent = statistics.median(self.sent_bytes)
        return {"median_us": middle, "quartiles_us": [low, high], "sent_bytes": sent}


@dataclass(frozen=True)
class Way:
    """How an operation is run: a backend, and what the ranks find in their environment."""

    backend: str
    wire: str = ""  # elements between hosts, if not as they are

    @property
    def name(self) -> str:
        return f"{self.backend} {self.wire}".strip()

    @property
    def environment(self) -> dict[str, str]:
        return {"CCL_WIRE_DTYPE": self.wire} if self.wire else {}


@dataclass(frozen=True)
class Row:
    hosts: int
    ranks: int  # on each host
    op: str
    bytes: int
    goals: tuple[Callable[["Row", dict[str, Turns]], dict], ...]
    rate: str = ""  # of every cable, both ways
    wires: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        rate = self.rate or "unshaped"
        return f"{self.hosts}x{self.ranks} {rate} {self.op} {readable_bytes(self.bytes)}"

    def case(self, way: Way) -> Case:
        op = self.op + ("_rounded" if way.wire else "")
        return Case(op, self.bytes, "float32", self.hosts * self.ranks)

    def least_bytes(self) -> float:
        """That a host must send for an all-reduce."""
        return 2 * (self.hosts - 1) / self.hosts * self.bytes


# ---- goals: each judges one way to run a row; None if a backend that it needs did not run


def ratio(slow: str, fast: str, goal: float):
    def judge(row: Row, turns: dict[str, Turns]) -> dict | None:
        if slow not in turns or fast not in turns:
            return None
        pairs = zip(turns[slow].seconds, turns[fast].seconds, strict=True)
        ratios = [a / b for a, b in pairs]
        return {"way": fast, **judged(f"{slow} / {fast}", ratios, "x", at_least=goal)}

    return judge


def share_of_wire(goal: float):
    def judge(row: Row, turns: dict[str, Turns]) -> dict | None:
        if "ccl" not in turns:
            return None
        shares = [row.least_bytes() / GBIT_RATE / s for s in turns["ccl"].seconds]
        return {"way": "ccl", **judged("share of the wire", shares, "", at_least=goal)}

    return judge


def sent_bytes(goal: float):
    def judge(row: Row, turns: dict[str, Turns]) -> dict | None:
        if "ccl" not in turns:
            return None
        shares = [count / row.least_bytes() for count in turns["ccl"].sent_bytes]
        return {"way": "ccl", **judged("bytes sent / least", shares, "x", at_most=goal)}

    return judge


def faster(goal: float):
    return (ratio("gloo", "ccl", goal),)


GBIT = "1gbit"
FULL_WIRE = (share_of_wire(0.92), ratio("gloo", "ccl", 1.0))
HIERARCHY = (
    ratio("gloo", "ccl", 1.4),
    sent_bytes(1.05),
    ratio("ccl", "ccl bf16", 1.9),
    ratio("ccl", "ccl int8", 3.3),
)

ROWS = (
    Row(2, 1, "ping_pong", 8, faster(8)),
    Row(2, 1, "ping_pong", 4 << 10, faster(8)),
    Row(2, 1, "all_reduce", 8, faster(20)),
    Row(2, 1, "all_reduce", 4 << 10, faster(20)),
    Row(4, 1, "all_reduce", 8, faster(30)),
    Row(4, 1, "all_reduce", 4 << 10, faster(30)),
    Row(4, 1, "all_reduce", 1 * MIB, FULL_WIRE, GBIT),
    Row(4, 1, "all_reduce", 16 * MIB, FULL_WIRE, GBIT),
    Row(4, 1, "all_reduce", 64 * MIB, FULL_WIRE, GBIT),
    Row(2, 2, "all_reduce", 16 * MIB, HIERARCHY, GBIT, wires=("bf16", "int8")),
)


# ---- measuring


@contextlib.contextmanager
def running_ranks(
    hosts: list[Host], layout: list[int], task: str, backends: list[str], port: int, **more: str
) -> Iterator[Processes]:
    started, pipes = [], []
    try:
        for host, environment in rank_environments(hosts, layout, port, **more):
            mine, theirs = Pipe()
            pipes.append(mine)
            words = [sys.executable, RANK, str(theirs.fileno()), task, ",".join(backends)]
            started.append(host.start(words, env=environment, pass_fds=[theirs.fileno()]))
            theirs.close()
        ranks = Processes(pipes)
        ranks.answers()
        yield ranks
        for pipe in pipes:
            pipe.send("end")
        for process in started:
            process.wait(30)
    finally:
        for process in started:
            process.kill()
            process.wait()


def take_turn(hosts: list[Host], ranks: Ranks, case: Case, backend: str, turns: Turns) -> None:
    before = [host.sent_bytes() for host in hosts]
    turns.seconds.append(statistics.median(ranks.time(case, backend)))
    sent = max(host.sent_bytes() - count for host, count in zip(hosts, before, strict=True))
    turns.sent_bytes.append(sent / (WARM_UP + case.iterations()))


def measure(
    hosts: list[Host], row: Row, ranks: dict[str, Ranks], ways: list[Way], alternations: int
) -> dict[str, Turns]:
    for host in hosts:
        host.set_rate(row.rate or None)
    turns = {way.name: Turns() for way in ways}
    # Small messages are soon done, and the machine's moods show in them most.
    for _ in range(alternations * (3 if row.bytes <= 64 << 10 else 1)):
        for way in ways:
            take_turn(hosts, ranks[way.wire], row.case(way), way.backend, turns[way.name])
    return turns


def lines_of(row: Row, turns: dict[str, Turns]) -> list[dict]:
    """One for each goal."""
    figures = {name: of_way.figures() for name, of_way in turns.items()}
    judgements = [judgement for goal in row.goals if (judgement := goal(row, turns))]
    return [{"row": row.name, "times": figures, **judgement} for judgement in judgements or [{}]]


@contextlib.contextmanager
def booted(count: int, control: str) -> Iterator[list[Host]]:
    with virtual_hosts(count) as hosts:
        for host in hosts:
            if control:
                host.set_congestion_control(control)
        yield hosts


def run_rows(
    rows: list[Row], backends: list[str], alternations: int, control: str
) -> Iterator[dict]:
    """Rows of one layout follow each other and share its processes."""
    for layout in dict.fromkeys((row.hosts, row.ranks) for row in rows):
        count, each = layout
        mine = [row for row in rows if (row.hosts, row.ranks) == layout]
        wires = {wire: None for row in mine for wire in row.wires if "ccl" in backends}
        with booted(count, control) as hosts, contextlib.ExitStack() as stack:
            ranks = {}
            for k, wire in enumerate(("", *wires)):
                names = ["ccl"] if wire else backends
                started = running_ranks(
                    hosts, [each] * count, "time", names, 29500 + k, **Way("ccl", wire).environment
                )
                ranks[wire] = Ranks(stack.enter_context(started))
            for row in mine:
                ways = [Way(name) for name in backends]
                ways += [Way("ccl", wire) for wire in row.wires if "ccl" in backends]
                yield from lines_of(row, measure(hosts, row, ranks, ways, alternations))


def run_starts(
    layouts: list[tuple[int, int]], backends: list[str], repetitions: int, control: str
) -> Iterator[dict]:
    """From the start of the first process, and from the last rank's call, to the first sum."""
    for count, each in layouts:
        with booted(count, control) as hosts:
            found: dict[str, list] = {backend: [] for backend in backends}
            for _ in range(repetitions):
                for backend in backends:
                    begun = time.monotonic()
                    with running_ranks(
                        hosts, [each] * count, "start", [backend], 29500
                    ) as processes:
                        ranks = processes.ask(None)
                    begins, ends, operations = zip(*ranks, strict=True)
                    ended = max(ends)
                    found[backend].append((ended - begun, ended - max(begins), max(operations)))
        for backend, values in found.items():
            seconds, group_s, operations = map(list, zip(*values, strict=True))
            yield {
                "start": f"{count}x{each}",
                "backend": backend,
                "seconds": quartiles(seconds),
                "group_ms": quartiles([s * 1e3 for s in group_s]),
                "store_operations": max(operations),
            }


# ---- showing


def readable_time(us: float) -> str:
    return f"{us:.1f} us" if us < 1000 else f"{us / 1000:.2f} ms"


def spread(figures: dict | None) -> str:
    if not figures:
        return "-"
    low, high = map(readable_time, figures["quartiles_us"])
    return f"{readable_time(figures['median_us'])} ({low} - {high})"


def print_lines(lines: list[dict], title: str, caption: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=caption, caption_justify="left")
    for name in ("hosts x ranks", "ccl", "gloo", "figure", "median (quartiles)", "goal", "reached"):
        table.add_column(name)
    for line in lines:
        ours = line["times"].get(line.get("way", "ccl"))
        cells = [line["row"], spread(ours), spread(line["times"].get("gloo"))]
        if "goal" in line:
            low, high = line["quartiles"]
            cells += [line["what"], f"{line['median']:.2f} ({low:.2f}-{high:.2f}) {line['unit']}"]
            cells += [line["goal"], "yes" if line["reached"] else "NO"]
        table.add_row(*cells)
    Console(width=170).print(table)


def print_starts(lines: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="start: until the first all_reduce is done on all ranks")
    for name in ("hosts x ranks", "backend", "from the command line", "from the last rank's init"):
        table.add_column(name)
    table.add_column("operations on the store, worst rank")
    for line in lines:
        low, middle, high = line["seconds"]
        first, group, last = line["group_ms"]
        table.add_row(
            line["start"],
            line["backend"],
            f"{middle:.1f} s ({low:.1f}-{high:.1f})",
            f"{group:.0f} ms ({first:.0f}-{last:.0f})",
            str(line["store_operations"]),
        )
    Console(width=170).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-hosts ARGS=...")
    parser.add_argument("--backends", default="ccl,gloo")
    parser.add_argument("--rows", default="", help="only those whose name has this pattern in it")
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two turns, one start")
    parser.add_argument("--congestion-control", default="", help="the machine's if not given")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    backends = given.backends.split(",")
    alternations = 2 if given.quick else given.alternations
    rows = [row for row in ROWS if re.search(given.rows, row.name)]
    layouts = [x for x in START_LAYOUTS if re.search(given.rows, f"{x[0]}x{x[1]} start")]

    others = Others()
    with booted(1, given.congestion_control) as hosts:
        control = hosts[0].congestion_control()
    lines = list(run_rows(rows, backends, alternations, control))
    starts = list(run_starts(layouts, backends, math.ceil(alternations / 2), control))
    caption = (
        f"{alternations} turns of each, {3 * alternations} of small messages; "
        f"congestion control {control}; "
        f"other programs kept {others.cores():.2f} cores busy meanwhile"
    )
    if lines:
        print_lines(lines, "ccl and Gloo over virtual hosts", caption)
    if starts:
        print_starts(starts)
    if given.json:
        facts = {"alternations": alternations, "congestion_control": control, "starts": starts}
        write_json(given.json, lines, **facts)


if __name__ == "__main__":
    main()
