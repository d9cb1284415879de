"""`torch-ccl bench`: one collective at a time on several backends, alternately, results checked."""

import statistics
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.goals import goal
from torch_ccl.cli.bench.progress import Step, progress_bar
from torch_ccl.cli.bench.report import Goal, JsonObject, write_json
from torch_ccl.cli.bench.summary import (
    Summary,
    ratios,
    size_text,
    time_summary_text,
    time_text,
)
from torch_ccl.cli.bench.timing import TimingRanks, timing_ranks
from torch_ccl.cli.tables import print_table


@dataclass(frozen=True)
class BackendTimes:
    us: Summary  # of the medians of the alternations
    p99_us: float  # of all calls
    ratio: Summary | None  # to the first backend's time; None for the first

    def as_json(self) -> JsonObject:
        row: JsonObject = {
            "median_us": self.us.median,
            "quartiles_us": self.us.quartiles,
            "p99_us": self.p99_us,
        }
        if self.ratio:
            row["times_slower"] = [self.ratio.low, self.ratio.median, self.ratio.high]
        return row


@dataclass(frozen=True)
class CaseResult:
    case: Case
    times: dict[str, BackendTimes]  # by backend

    @property
    def goal(self) -> Goal | None:
        bound = goal(self.case.op, self.case.bytes, self.case.dtype, self.case.ranks)
        return None if bound is None else Goal(">=", bound)

    @property
    def goal_text(self) -> str:
        """Goals are relative to Gloo."""
        ratio = self.times["gloo"].ratio if "gloo" in self.times else None
        if self.goal is None or ratio is None:
            return ""
        return f"{'reached' if self.goal.is_reached(ratio) else 'MISSED'} {self.goal.bound:g}"

    def as_json(self, goals: bool) -> JsonObject:
        case = self.case
        row = {"op": case.op, "bytes": case.bytes, "dtype": case.dtype, "ranks": case.ranks}
        times = {backend: times.as_json() for backend, times in self.times.items()}
        return {**row, **times, **({"goal": self.goal and self.goal.bound} if goals else {})}


def percentile_99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def measure(ranks: TimingRanks, case: Case, backends: list[str], alternations: int) -> CaseResult:
    all_us: dict[str, list[float]] = {backend: [] for backend in backends}
    medians_us: dict[str, list[float]] = {backend: [] for backend in backends}
    for _ in range(alternations):
        for backend in backends:
            times_us = [seconds * 1e6 for seconds in ranks.time(case, backend)]
            all_us[backend] += times_us
            medians_us[backend].append(statistics.median(times_us))
    first = medians_us[backends[0]]
    times = {}
    for backend, medians in medians_us.items():
        ratio = Summary.of(ratios(medians, first)) if backend != backends[0] else None
        times[backend] = BackendTimes(Summary.of(medians), percentile_99(all_us[backend]), ratio)
    return CaseResult(case, times)


def run_cases(
    cases: list[Case], backends: list[str], alternations: int, step: Step
) -> list[CaseResult]:
    """Cases with the same number of ranks share their processes."""
    results = []
    for size in dict.fromkeys(case.ranks for case in cases):
        with timing_ranks(size, backends) as ranks:
            for case in cases:
                if case.ranks == size:
                    with step(str(case)):
                        results.append(measure(ranks, case, backends, alternations))
    return results


def table_row(result: CaseResult, goals: bool) -> list[str]:
    cells = [size_text(result.case.bytes) if result.case.bytes else "-"]
    cells += [time_summary_text(times.us) for times in result.times.values()]
    cells += [times.ratio.text() for times in result.times.values() if times.ratio]
    if goals:
        return [*cells, result.goal_text]
    return [*cells, *(time_text(times.p99_us) for times in result.times.values())]


def print_results(results: list[CaseResult], backends: list[str], goals: bool) -> None:
    """One table for each operation, dtype and number of ranks."""
    first, *others = backends
    columns = ["size", *backends, *(f"{other} / {first}" for other in others)]
    columns += ["goal"] if goals else [f"{backend} p99" for backend in backends]
    for title, group in groupby(results, lambda result: result.case.title):
        rows = [table_row(result, goals) for result in group]
        print_table(f"{title}: median (quartiles)", columns, rows, figures=True)


def bench_collectives(
    cases: list[Case],
    backends: list[str],
    alternations: int,
    goals: bool,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    with progress_bar(len(cases)) as step:
        results = run_cases(cases, backends, alternations, step)
    print_results(results, backends, goals)
    if json_file:
        rows = [result.as_json(goals) for result in results]
        write_json(json_file, rows, alternations=alternations)
    if plot_file:
        from torch_ccl.cli.bench.plot import write_plots

        write_plots(results, backends, plot_file)
