"""Goals and whether they are reached, as a table and in the file of figures.

A goal counts when the worse quartile of what was measured reaches it.
"""

import json
from pathlib import Path

from torch_ccl.cli.bench import commit, cpu_model, quartiles


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


def print_verdicts(title: str, rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
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


def write_figures(path: Path | None, alternations: int, **figures: list) -> None:
    if path:
        facts = {"cpu": cpu_model(), "commit": commit(), "alternations": alternations}
        path.write_text(json.dumps({**facts, **figures}, indent=1))
