#!/usr/bin/env python3
"""Runs programs from PyPI on Gloo and on ccl, and prints one table of both.

tests/applications/run.py                              all, three times on each backend, in turns
tests/applications/run.py --repetitions 5 lightning    those whose names contain the word

It fails unless every program ran on ccl with the opt-in, reached Gloo's final loss, and failed its
own assertion without the opt-in. `tools/setup.sh applications` comes first.
"""

import argparse
import signal
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.applications import (
    PROGRAMS,
    Program,
    check_backend,
    check_fails_on_gloo,
    check_losses,
    finished,
)

BACKENDS = ("gloo", "ccl")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only programs whose names contain one of these")
    parser.add_argument("--repetitions", type=int, default=3)
    return parser.parse_args()


def chosen(words: list[str]) -> list[Program]:
    return [p for p in PROGRAMS if not words or any(word in p.name for word in words)]


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(program: Program, repetitions: int) -> dict[str, list[dict]]:
    """The reports of all runs by backend; the backends alternate in who runs first."""
    runs = {backend: [] for backend in BACKENDS}
    for turn in range(repetitions):
        for backend in BACKENDS if turn % 2 == 0 else BACKENDS[::-1]:
            report = finished(program, backend)
            check_backend(report, backend)
            runs[backend].append(report)
            print_progress(f"{program.name} on {backend}: {report['steps_per_s']:.1f} steps/s")
    for on_gloo in runs["gloo"]:
        for on_ccl in runs["ccl"]:
            check_losses(on_gloo, on_ccl)
    return runs


def row(program: Program, backend: str, runs: list[dict]) -> list[str]:
    speeds = [run["steps_per_s"] for run in runs]
    return [
        program.name,
        backend,
        f"{statistics.median(speeds):.1f}",
        f"{min(speeds):.1f} - {max(speeds):.1f}",
        f"{runs[-1]['loss']:.7f}",
        str(runs[-1]["operations"]),
    ]


def print_table(rows: list[list[str]]) -> None:
    head = ["program", "backend", "steps/s", "from - to", "final loss", "ccl operations"]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for cells in [head, *rows]:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip())


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    rows, wrong = [], []
    for program in chosen(arguments.words):
        try:
            runs = measure(program, arguments.repetitions)
            rows += [row(program, backend, runs[backend]) for backend in BACKENDS]
            check_fails_on_gloo(program)
            print_progress(f"{program.name} without ccl: its assertion fails, as it must")
        except AssertionError as problem:
            wrong.append(f"{program.name}: {problem}")
    if rows:
        print_table(rows)
    print("\n".join(wrong))
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
