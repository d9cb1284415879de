"""Goals and whether they are reached, as rows and as a table.

A goal counts when the worse quartile of what was measured reaches it.
"""

import os
import resource
import time
from pathlib import Path

from torch_ccl.cli.bench import quartiles


class Others:
    """The cores that other programs keep busy meanwhile; they spoil the figures."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy_s = self._all_s() - self._our_s()

    @staticmethod
    def _all_s() -> float:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _our_s() -> float:
        """Of this process and of those that it started and that have ended."""
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def cores(self) -> float:
        elapsed = time.monotonic() - self._began
        return max(0.0, (self._all_s() - self._our_s() - self._busy_s) / elapsed)


def judged(
    what: str,
    values: list[float],
    unit: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> dict:
    """One row; a goal is at most one of the four, and without one the row is for information."""
    low, middle, high = quartiles(values)
    row = {"what": what, "unit": unit, "median": middle, "quartiles": [low, high]}
    bounds = (
        (">=", at_least, lambda goal: low >= goal),
        (">", above, lambda goal: low > goal),
        ("<=", at_most, lambda goal: high <= goal),
        ("<", below, lambda goal: high < goal),
    )
    for sign, goal, is_reached in bounds:
        if goal is not None:
            row |= {"goal": f"{sign} {goal:g}", "reached": is_reached(goal)}
    return row


def print_verdicts(title: str, rows: list[dict], others: Others) -> None:
    from rich.console import Console
    from rich.table import Table

    caption = f"other programs kept {others.cores():.2f} cores busy meanwhile"
    table = Table(title=title, caption=caption, caption_justify="left")
    table.add_column("what")
    table.add_column("median (quartiles)", justify="right")
    table.add_column("goal")
    for row in rows:
        low, high = row["quartiles"]
        figures = f"{row['median']:.2f} ({low:.2f}-{high:.2f}) {row['unit']}"
        goal = ""
        if "goal" in row:
            goal = f"{'reached' if row['reached'] else 'MISSED'} {row['goal']}"
        table.add_row(row["what"], figures, goal)
    Console(width=150).print(table)
