"""`torch-ccl bench --peers`: libtccl compared with MPI libraries, in C++ and without torch.

`loop.h` is the benchmark: it pins each rank to a core, times each call and checks the results.
`ccl.cc` and `mpi.cc` compile it for a library. The MPI libraries are packages from PyPI, each in a
virtual environment of its own, with its own compiler wrapper and launcher and its default settings.
"""

import statistics
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.peers.libraries import LIBRARIES, Library, PeerError, build_mpi, build_ours
from torch_ccl.cli.bench.peers.run import time_operation
from torch_ccl.cli.bench.progress import Step, progress_bar
from torch_ccl.cli.bench.report import Goal, JsonObject, write_json
from torch_ccl.cli.bench.summary import Summary, ratios, size_text, time_summary_text
from torch_ccl.cli.tables import print_table

__all__ = ["LIBRARIES", "OPERATIONS", "PeerError", "bench_peers"]

OURS = "ccl"
OPERATIONS = ("all_reduce", "all_gather", "all_to_all", "broadcast")
GOAL = Goal("<=", 1.05)  # ccl's time divided by that of the fastest MPI library, medians


@dataclass(frozen=True)
class PeerCaseResult:
    case: Case
    us: dict[str, Summary]  # by library
    fastest_peer: str
    ratio: Summary  # ccl's time divided by the fastest peer's

    @property
    def reached(self) -> bool:
        return self.ratio.median <= GOAL.bound

    def as_json(self, goals: bool) -> JsonObject:
        case = self.case
        row = {"op": case.op, "bytes": case.bytes, "dtype": case.dtype, "ranks": case.ranks}
        times = {
            name: {"median_us": us.median, "quartiles_us": us.quartiles}
            for name, us in self.us.items()
        }
        ratio = {"median": self.ratio.median, "quartiles": self.ratio.quartiles}
        result = {**row, **times, "fastest_peer": self.fastest_peer, "ratio": ratio}
        return result | ({"reached": self.reached} if goals else {})


def summarize(case: Case, medians_us: dict[str, list[float]]) -> PeerCaseResult:
    us = {name: Summary.of(medians) for name, medians in medians_us.items()}
    fastest = min((name for name in us if name != OURS), key=lambda name: us[name].median)
    ratio = Summary.of(ratios(medians_us[OURS], medians_us[fastest]))
    return PeerCaseResult(case, us, fastest, ratio)


def measure(
    libraries: list[Library], cases: list[Case], alternations: int, step: Step
) -> list[PeerCaseResult]:
    """Cases of one operation and number of ranks: one run of each library measures them all."""
    medians: dict[Case, dict[str, list[float]]] = {
        case: {library.name: [] for library in libraries} for case in cases
    }
    for _ in range(alternations):
        for library in libraries:
            with step(f"{cases[0].op}, {cases[0].ranks} ranks, {library.name}"):
                for case, times_us in time_operation(library, cases).items():
                    medians[case][library.name].append(statistics.median(times_us))
    return [summarize(case, medians[case]) for case in cases]


def table_row(result: PeerCaseResult, goals: bool) -> list[str]:
    cells = [size_text(result.case.bytes)]
    cells += [time_summary_text(us) for us in result.us.values()]
    cells.append(f"{result.ratio.text()} {result.fastest_peer}")
    return [*cells, *([("reached" if result.reached else "MISSED")] if goals else [])]


def print_goals(results: list[PeerCaseResult]) -> None:
    missed = [result for result in results if not result.reached]
    for result in missed:
        print(f"MISSED {result.case}: {result.ratio.text()} times {result.fastest_peer}")
    print(f"{len(results) - len(missed)} of {len(results)} cases at or below {GOAL.bound}")


def print_results(results: list[PeerCaseResult], names: list[str], goals: bool) -> None:
    columns = ["size", *names, f"{OURS} / fastest peer", *([f"goal {GOAL}"] if goals else [])]
    for title, group in groupby(results, lambda result: result.case.title):
        rows = [table_row(result, goals) for result in group]
        print_table(f"{title}: median (quartiles)", columns, rows, figures=True)
    if goals:
        print_goals(results)


def bench_peers(
    names: list[str],
    directory: Path,
    cases: list[Case],
    alternations: int,
    goals: bool,
    json_file: Path | None,
) -> None:
    """Builds the libraries' programs, runs them alternately and prints the result."""
    directory = directory.resolve()
    groups = [list(group) for _, group in groupby(cases, lambda case: (case.op, case.ranks))]
    results: list[PeerCaseResult] = []
    with progress_bar((1 + len(names)) * (1 + len(groups) * alternations)) as step:
        with step(f"compiling {OURS}"):
            libraries = [build_ours(directory)]
        for name in names:
            with step(f"installing and compiling {name}"):
                libraries.append(build_mpi(name, directory))
        for group in groups:
            results += measure(libraries, group, alternations, step)
    print_results(results, [library.name for library in libraries], goals)
    if json_file:
        rows = [result.as_json(goals) for result in results]
        versions = {library.name: library.version for library in libraries[1:]}
        write_json(json_file, rows, alternations=alternations, peers=versions)
