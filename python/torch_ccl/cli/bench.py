"""`torch-ccl bench`: times operations on several backends in one go, alternating between them."""

import json
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from torch_ccl.cli.goals import GOALS, SIZES, goal
from torch_ccl.cli.operations import OPERATIONS
from torch_ccl.cli.timing import Case, Ranks, running_ranks


def parse_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = units.get(number[-1:], 1)
    return int(number.rstrip("KMG")) * unit


def readable_bytes(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def commit() -> str:
    """Of the working directory, if it is a checkout."""
    command = ["git", "describe", "--always", "--dirty"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def write_json(path: Path, rows: list[dict], **facts) -> None:
    where = {"cpu": cpu_model(), "commit": commit()}
    path.write_text(json.dumps({**where, **facts, "rows": rows}, indent=1))


def measure(ranks: Ranks, case: Case, backends: list[str], alternations: int) -> dict:
    """One row of the result: times in microseconds, and ratios to the first backend."""
    medians: dict[str, list[float]] = {backend: [] for backend in backends}
    times: dict[str, list[float]] = {backend: [] for backend in backends}
    for _ in range(alternations):
        for backend in backends:
            seconds = ranks.time(case, backend)
            times[backend] += [s * 1e6 for s in seconds]
            medians[backend].append(statistics.median(seconds) * 1e6)
    first = backends[0]
    row = {"op": case.op, "bytes": case.bytes, "dtype": case.dtype, "ranks": case.ranks}
    for backend in backends:
        ordered = sorted(times[backend])
        low, middle, high = quartiles(medians[backend])
        row[backend] = {
            "median_us": middle,
            "quartiles_us": [low, high],
            "p99_us": ordered[int(0.99 * (len(ordered) - 1))],
        }
        if backend != first:
            pairs = zip(medians[backend], medians[first], strict=True)
            row[backend]["times_slower"] = list(
                quartiles([theirs / ours for theirs, ours in pairs])
            )
    row["goal"] = goal(case.op, case.bytes, case.dtype, case.ranks)
    return row


def make_cases(ops: list[str], sizes: list[int], dtypes: list[str], ranks: int) -> list[Case]:
    cases = []
    for op in ops:
        for dtype in dtypes:
            for size in [0] if op == "barrier" else sizes:
                case = Case(op, size, dtype, ranks)
                if case not in cases and not (op == "barrier" and dtype != dtypes[0]):
                    cases.append(case)
    return cases


def goal_cases() -> dict[int, list[Case]]:
    """The cases that have a goal, by number of ranks."""
    cases: dict[int, list[Case]] = {}
    for op, dtype, ranks in GOALS:
        cases.setdefault(ranks, []).extend(Case(op, size, dtype, ranks) for size in SIZES)
    cases[2].append(Case("barrier", 0, "float32", 2))
    return cases


def run(
    plan: dict[int, list[Case]], backends: list[str], alternations: int, progress
) -> list[dict]:
    rows = []
    for ranks, cases in plan.items():
        with running_ranks(ranks, backends) as processes:
            for case in cases:
                progress(case)
                rows.append(measure(processes, case, backends, alternations))
    return rows


def verdict(row: dict, backend: str) -> str:
    if row["goal"] is None or backend != "gloo":
        return ""
    reached = row[backend]["times_slower"][0] >= row["goal"]
    return f"{'reached' if reached else 'MISSED'} {row['goal']:g}"


def print_table(rows: list[dict], backends: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    first, *others = backends
    table = Table(title="microseconds per call: median of medians (quartiles), p99 of all calls")
    for name in ("operation", "dtype", "ranks", "size"):
        table.add_column(name)
    for backend in backends:
        table.add_column(backend, justify="right")
    for backend in others:
        table.add_column(f"{backend}/{first}", justify="right")
    table.add_column("goal")
    for row in rows:
        cells = [row["op"], row["dtype"], str(row["ranks"]), readable_bytes(row["bytes"])]
        for backend in backends:
            figures = row[backend]
            low, high = figures["quartiles_us"]
            cells.append(
                f"{figures['median_us']:.1f} ({low:.1f}-{high:.1f}), p99 {figures['p99_us']:.0f}"
            )
        for backend in others:
            low, middle, high = row[backend]["times_slower"]
            cells.append(f"{middle:.1f} ({low:.1f}-{high:.1f})")
        cells.append(" ".join(filter(None, (verdict(row, backend) for backend in others))))
        table.add_row(*cells)
    Console(width=150).print(table)


def plot(rows: list[dict], backends: list[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = sorted({(row["op"], row["dtype"], row["ranks"]) for row in rows if row["bytes"]})
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4 * len(panels), 3.5), squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        mine = [r for r in rows if (r["op"], r["dtype"], r["ranks"]) == panel and r["bytes"]]
        for backend in backends:
            points = [(row["bytes"], row[backend]["median_us"]) for row in mine]
            axis.loglog(*zip(*sorted(points), strict=True), marker="o", label=backend)
        axis.set_title(f"{panel[0]}, {panel[1]}, {panel[2]} ranks", fontsize=10)
        axis.set_xlabel("bytes")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("us per call (median)")
    axes[0][0].legend()
    figure.savefig(path)


def bench(
    ops: Annotated[
        str | None, typer.Option(help=f"of {','.join(OPERATIONS)} (all_reduce; with --peers four)")
    ] = None,
    sizes: Annotated[str, typer.Option(help="bytes, such as 8,4K,1M")] = "8,4K,64K,1M,16M,64M",
    ranks: Annotated[str, typer.Option(help="numbers of ranks, such as 2,4")] = "2",
    dtypes: Annotated[str, typer.Option(help="such as float32,bfloat16")] = "float32",
    backends: Annotated[
        str, typer.Option(help="the first is what the others are compared with")
    ] = "ccl,gloo",
    alternations: Annotated[int, typer.Option(help="how often each backend has its turn")] = 5,
    goals: Annotated[bool, typer.Option(help="measure all that has a goal")] = False,
    peers: Annotated[
        str | None, typer.Option(help="instead: libtccl against mpich,openmpi, in C++")
    ] = None,
    peers_dir: Annotated[Path, typer.Option(help="where they are installed")] = Path("build/peers"),
    programs: Annotated[str, typer.Option(help="whole programs, of decode,ddp_step")] = "",
    footprint: Annotated[bool, typer.Option(help="overhead, zero copy, memory, start")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="draw them here (.svg)")] = None,
) -> None:
    """Time operations on several backends, in one go and with checked results."""
    from rich.progress import Progress

    if programs:
        from torch_ccl.cli.programs import bench_programs

        return bench_programs(programs.split(","), alternations, json_file)
    if footprint:
        from torch_ccl.cli.footprint import bench_footprint

        return bench_footprint(alternations, json_file)
    counts = [int(count) for count in ranks.split(",")]
    byte_counts = [parse_bytes(size) for size in sizes.split(",")]
    if peers:
        from torch_ccl.cli import peers as cpp

        chosen = ops.split(",") if ops else list(cpp.OPERATIONS)
        cpp.compare(
            peers.split(","), peers_dir, chosen, byte_counts, counts, alternations, json_file
        )
        return
    names = backends.split(",")
    plan = (
        goal_cases()
        if goals
        else {
            count: make_cases(
                (ops or "all_reduce").split(","), byte_counts, dtypes.split(","), count
            )
            for count in counts
        }
    )
    with Progress(transient=True) as bar:
        task = bar.add_task("starting ranks", total=sum(map(len, plan.values())))

        def progress(case: Case) -> None:
            where = f"{case.op} {case.dtype} {readable_bytes(case.bytes)}, {case.ranks} ranks"
            bar.update(task, advance=1, description=where)

        rows = run(plan, names, alternations, progress)
    print_table(rows, names)
    if json_file:
        write_json(json_file, rows, alternations=alternations)
    if plot_file:
        plot(rows, names, plot_file)
