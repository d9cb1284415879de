"""`torch-ccl doctor`: checks whether this machine and environment are ready to run ranks."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch_ccl.cli.checks import Finding, Machine

COLORS = {"ok": typer.colors.GREEN, "warning": typer.colors.YELLOW, "problem": typer.colors.RED}


def print_findings(rows: list[dict[str, Any]]) -> None:
    """Print one line for each finding."""
    width = max(len(row["check"]) for row in rows)
    for row in rows:
        level = typer.style(f"{row['level']:<7}", fg=COLORS[row["level"]])
        advice = f" -> {row['advice']}" if row["advice"] else ""
        typer.echo(f"{level}  {row['check']:<{width}}  {row['found']}{advice}")


def find(check: "Callable[[Machine], Finding]", machine: "Machine") -> "Finding":
    """Call a check. Several need the library, which this command must not need."""
    from torch_ccl.cli.checks import PROBLEM, Finding
    from torch_ccl.libtccl import LoadError

    try:
        return check(machine)
    except LoadError as problem:
        return Finding(PROBLEM, str(problem), "install torch-ccl again, and what ldd does not find")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine and environment, and run two ranks. Exit code 1 if there is a problem."""
    from torch_ccl.cli.checks import CHECKS, PROBLEM, Machine

    machine = Machine()
    rows = [{"check": name, **find(check, machine)._asdict()} for name, check in CHECKS]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        print_findings(rows)
    raise typer.Exit(int(any(row["level"] == PROBLEM for row in rows)))
