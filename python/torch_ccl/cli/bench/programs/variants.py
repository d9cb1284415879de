"""Runs the variants of a program alternately: on each backend, and in one process."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch_ccl.cli.bench.progress import Step
from torch_ccl.cli.bench.ranks import Handler, RankConnections, start_ranks
from torch_ccl.cli.bench.report import Figure, Goal
from torch_ccl.cli.bench.summary import Summary, ratios

BACKENDS = ("ccl", "gloo")
ONE_PROCESS = "one process"
#: Variants in one process, and their threads.
THREADS = {"1 process, 1 thread": 1, "1 process, 2 threads": 2}

Speeds = dict[str, list[float]]  # by variant, one value per alternation


@dataclass(frozen=True)
class ProgramResult:
    name: str
    unit: str
    speeds: dict[str, Summary]  # by variant
    ratios: list[Figure]


def start_variants(
    stack: ExitStack, handler: Callable[..., Handler], *args: Any
) -> dict[str, RankConnections]:
    """Two ranks on each backend, and one process without a backend."""
    ranks = {
        backend: stack.enter_context(start_ranks(2, handler, *args, backend))
        for backend in BACKENDS
    }
    return ranks | {ONE_PROCESS: stack.enter_context(start_ranks(1, handler, *args, None))}


def alternate(
    name: str, run_once: Callable[[], dict[str, float]], alternations: int, step: Step
) -> Speeds:
    """`run_once` measures every variant once."""
    runs = []
    for _ in range(alternations):
        with step(name):
            runs.append(run_once())
    return {variant: [run[variant] for run in runs] for variant in runs[0]}


def summarize(
    name: str, unit: str, speeds: Speeds, pairs: list[tuple[str, str, Goal | None]]
) -> ProgramResult:
    """`pairs` are the variants to compare: the ratio of their speeds, and its goal."""
    figures = [
        Figure(f"{name}: {a} / {b}", Summary.of(ratios(speeds[a], speeds[b])), "x", goal)
        for a, b, goal in pairs
    ]
    summaries = {variant: Summary.of(values) for variant, values in speeds.items()}
    return ProgramResult(name, unit, summaries, figures)
