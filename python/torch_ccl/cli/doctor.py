"""`torch-ccl doctor`: whether this machine and this environment are fit for ranks."""

import json
from typing import Annotated

import typer

COLOURS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "problem": typer.colors.RED}


def print_findings(rows: list[dict]) -> None:
    """One line each."""
    width = max(len(row["check"]) for row in rows)
    for row in rows:
        level = typer.style(f"{row['level']:<7}", fg=COLOURS[row["level"]])
        advice = f" -> {row['advice']}" if row["advice"] else ""
        typer.echo(f"{level}  {row['check']:<{width}}  {row['found']}{advice}")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="the findings as JSON")] = False,
) -> None:
    """Check this machine and environment, and let two ranks talk; 1 is returned for a problem."""
    from torch_ccl.cli.checks import CHECKS, PROBLEM, Machine

    machine = Machine()
    rows = [{"check": name, **check(machine)._asdict()} for name, check in CHECKS]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        print_findings(rows)
    raise typer.Exit(int(any(row["level"] == PROBLEM for row in rows)))
