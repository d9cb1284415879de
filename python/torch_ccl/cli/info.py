"""`torch-ccl info`: what the library does on this machine, with this environment."""

from typing import Annotated

import typer

NO_LIMIT = 1 << 63


def readable_range(row: dict) -> str:
    last = "max" if row["to_bytes"] >= NO_LIMIT else str(row["to_bytes"])
    return f"{row['from_bytes']}-{last}"


def print_algorithms(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="which algorithm runs; of one operation the last row that fits")
    columns = (
        "operation",
        "algorithm",
        "hosts",
        "bytes",
        "ranks",
        "dtypes",
        "from",
        "how it works",
    )
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(
            row["operation"],
            row["algorithm"],
            "several" if row["several_hosts"] else "one",
            readable_range(row),
            f"{row['from_ranks']} or more",
            row["dtypes"],
            "environment" if row["by_setting"] else "table",
            row["doc"],
        )
    Console(width=150).print(table)


def print_settings(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="settings")
    for name in ("name", "value", "from"):
        table.add_column(name)
    for row in rows:
        table.add_row(row["name"], row["value"], "environment" if row["is_set"] else "default")
    Console(width=150).print(table)


def info(
    algorithms: Annotated[bool, typer.Option(help="the table of algorithms instead")] = False,
) -> None:
    """Show versions, instruction set and settings, or which algorithm runs when."""
    from importlib.metadata import version

    import torch

    import torch_ccl
    from torch_ccl import _C
    from torch_ccl.cli.bench import cpu_model

    facts = _C.info()
    if algorithms:
        return print_algorithms(facts["algorithms"])
    typer.echo(f"torch-ccl {version('torch_ccl')} with torch {torch.__version__}")
    typer.echo(f"installed in {torch_ccl.cwd}")
    typer.echo(f"{cpu_model()}; reductions use {facts['kernels']}")
    print_settings(facts["settings"])
