"""`torch-ccl bench --peers`: libtccl against MPI libraries in C++, without torch.

`loop.h` is the program: it pins, aligns, times and checks. `ccl.cc` and `mpi.cc` put a library
under it. The MPI libraries are packages from PyPI, each in a virtual environment of its own, with
its own compiler wrapper and launcher, and in its default configuration.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import typer

from torch_ccl.cli.bench import quartiles, readable_bytes, write_json
from torch_ccl.cli.processes import BOUND_S
from torch_ccl.cli.timing import WARM_UP, Case

OURS = "ccl"
OPERATIONS = ("all_reduce", "all_gather", "all_to_all", "broadcast")
GOAL = 1.05  # time of ours over that of the better peer
#: Each rank pins itself. Open MPI refuses root, and more ranks than cores, unless told.
LAUNCHER_OPTIONS = {
    "mpich": ["-bind-to", "none"],
    "openmpi": ["--bind-to", "none", "--allow-run-as-root", "--oversubscribe"],
}
SOURCES = Path(__file__).parent
PACKAGE = SOURCES.parents[1]  # with lib/ and include/
COMPILER_OPTIONS = ["-std=c++20", "-O2"]


class PeerError(Exception):
    """What failed, in one line."""


@dataclass
class Program:
    """A library under the loop."""

    name: str
    path: Path
    launcher: list[str] = field(default_factory=list)  # without one, we start every rank
    version: str = ""

    def commands(self, ranks: int) -> list[tuple[list[str], dict[str, str]]]:
        """Processes to start: command lines, and what to add to the environment."""
        if self.launcher:
            return [([*self.launcher, "-n", str(ranks), str(self.path)], {})]
        return [
            ([str(self.path)], {"RANK": str(rank), "WORLD_SIZE": str(ranks)})
            for rank in range(ranks)
        ]


def telling_line(text: str) -> str:
    """The line of an error output that says most: of our loop, else the last one with words."""
    lines = [line.strip() for line in text.splitlines() if any(c.isalpha() for c in line)]
    ours = [line for line in lines if line.startswith("rank ")]
    return (ours or lines[-1:] or ["no output"])[0]


def step(what: str, command: list[str | Path]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PeerError(f"{what}: {telling_line(result.stderr)}")
    return result.stdout.strip()


def build(name: str, compiler: list[str | Path], source: str, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-loop"
    head, *tail = compiler
    command = [head, *COMPILER_OPTIONS, SOURCES / source, "-o", path, *tail]
    step(f"{name}: cannot compile {source}", command)
    return path


def build_ours(directory: Path) -> Program:
    lib = PACKAGE / "lib"
    link = ["-I", PACKAGE / "include", "-L", lib, f"-Wl,-rpath,{lib}", "-ltccl"]
    return Program(OURS, build(OURS, ["c++", *link], "ccl.cc", directory))


def build_peer(name: str, directory: Path) -> Program:
    if name not in LAUNCHER_OPTIONS:
        raise PeerError(f"no peer {name}: there are {', '.join(LAUNCHER_OPTIONS)}")
    venv = directory / name
    python, wrapper, launcher = (venv / "bin" / p for p in ("python", "mpicxx", "mpiexec"))
    if not wrapper.exists() or not launcher.exists():
        step(f"{name}: cannot make {venv}", [sys.executable, "-m", "venv", "--clear", venv])
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", name]
        step(f"{name}: cannot install", install)
    ask = f"import importlib.metadata as m; print(m.version('{name}'))"
    version = step(f"{name}: not installed", [python, "-c", ask])
    path = build(name, [wrapper], "mpi.cc", directory)
    return Program(name, path, [str(launcher), *LAUNCHER_OPTIONS[name]], version)


def run_to_end(processes: list[subprocess.Popen]) -> list[int]:
    """Exit codes. Sleeps meanwhile: the cores belong to the ranks."""

    def stop() -> None:
        for process in processes:
            process.terminate()

    bound = threading.Timer(BOUND_S, stop)
    bound.start()
    try:
        return [process.wait() for process in processes]
    finally:
        bound.cancel()
        stop()


def time_operation(
    program: Program, ranks: int, op: str, sizes: list[int]
) -> dict[int, list[float]]:
    """For each size the microseconds of all iterations, maximum over the ranks."""
    asked = [f"{size}:{Case(op, size, 'float32', ranks).iterations()}" for size in sizes]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # no disk behind the times
    with tempfile.TemporaryDirectory(dir=memory) as name:
        directory = Path(name)
        arguments = [str(directory / "shared"), op, str(WARM_UP), *asked]
        with (directory / "out").open("w+") as out, (directory / "err").open("w+") as err:
            processes = [
                subprocess.Popen(
                    [*command, *arguments],
                    env={**os.environ, **extra},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
                for command, extra in program.commands(ranks)
            ]
            codes = run_to_end(processes)
        if any(codes):
            line = telling_line((directory / "err").read_text(errors="replace"))
            raise PeerError(f"{program.name}: {op} on {ranks} ranks failed ({codes}): {line}")
        results = map(json.loads, (directory / "out").read_text().splitlines())
        return {result["bytes"]: result["us"] for result in results}


def measure(
    programs: list[Program], ranks: int, op: str, sizes: list[int], alternations: int, progress
) -> list[dict]:
    """The rows of one operation: times in microseconds, and the ratio to the better peer."""
    medians = {size: {program.name: [] for program in programs} for size in sizes}
    for _ in range(alternations):
        for program in programs:
            progress(f"{op}, {ranks} ranks, {program.name}")
            for size, times_us in time_operation(program, ranks, op, sizes).items():
                medians[size][program.name].append(statistics.median(times_us))
    return [make_row(op, size, ranks, medians[size]) for size in sizes]


def make_row(op: str, size: int, ranks: int, medians: dict[str, list[float]]) -> dict:
    row = {"op": op, "bytes": size, "dtype": "float32", "ranks": ranks}
    for name, values in medians.items():
        low, middle, high = quartiles(values)
        row[name] = {"median_us": middle, "quartiles_us": [low, high]}
    better = min((name for name in medians if name != OURS), key=lambda n: row[n]["median_us"])
    pairs = zip(medians[OURS], medians[better], strict=True)
    low, middle, high = quartiles([ours / theirs for ours, theirs in pairs])
    ratio = {"median": middle, "quartiles": [low, high]}
    return {**row, "better_peer": better, "ratio": ratio, "reached": middle <= GOAL}


def readable_us(us: float) -> str:
    return f"{us:.2f}" if us < 100 else f"{us:.0f}"


def print_report(rows: list[dict], names: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="float32, microseconds per call: median of medians (quartiles)")
    for name in ("operation", "ranks", "size"):
        table.add_column(name)
    for name in (*names, f"{OURS}/better peer"):
        table.add_column(name, justify="right")
    table.add_column(f"goal {GOAL}")
    misses = []
    for row in rows:
        cells = [row["op"], str(row["ranks"]), readable_bytes(row["bytes"])]
        for name in names:
            low, high = row[name]["quartiles_us"]
            middle, low, high = map(readable_us, (row[name]["median_us"], low, high))
            cells.append(f"{middle} ({low}-{high})")
        low, high = row["ratio"]["quartiles"]
        cells.append(f"{row['ratio']['median']:.2f} ({low:.2f}-{high:.2f})")
        table.add_row(*cells, "reached" if row["reached"] else f"MISSED ({row['better_peer']})")
        if not row["reached"]:
            case = f"{cells[0]}, {cells[1]} ranks, {cells[2]}"
            misses.append(f"MISSED {case}: {cells[-1]} times {row['better_peer']}")
    console = Console(width=150)
    console.print(table)
    for miss in misses:
        console.print(miss, highlight=False)
    console.print(f"{len(rows) - len(misses)} of {len(rows)} cases at or below {GOAL}")


def compare(
    peers: list[str],
    directory: Path,
    ops: list[str],
    sizes: list[int],
    rank_counts: list[int],
    alternations: int,
    json_file: Path | None,
) -> None:
    """The whole command: builds, measures in turns, prints."""
    from rich.progress import Progress

    directory = directory.resolve()
    rows: list[dict] = []
    try:
        if unknown := [op for op in ops if op not in OPERATIONS]:
            raise PeerError(f"no operation {unknown[0]} here: there are {', '.join(OPERATIONS)}")
        # Refreshed by hand: a thread that draws would run on a rank's core.
        with Progress(transient=True, auto_refresh=False) as bar:
            total = len(ops) * len(rank_counts) * alternations * (1 + len(peers))
            task = bar.add_task("", total=total)

            def progress(what: str, advance: int = 1) -> None:
                bar.update(task, advance=advance, description=what, refresh=True)

            progress("building", 0)
            programs = [build_ours(directory)]
            for name in peers:
                progress(f"installing and building {name}", 0)
                programs.append(build_peer(name, directory))
            for ranks in rank_counts:
                for op in ops:
                    rows += measure(programs, ranks, op, sizes, alternations, progress)
    except (PeerError, OSError) as error:
        typer.echo(f"torch-ccl bench: {error}", err=True)
        raise typer.Exit(1) from error
    print_report(rows, [program.name for program in programs])
    if json_file:
        versions = {program.name: program.version for program in programs[1:]}
        write_json(json_file, rows, alternations=alternations, peers=versions)
