"""Tables on stdout, as wide as the terminal."""

import os
import sys
from collections.abc import Iterable, Sequence

PIPE_WIDTH = 150  # where stdout is not a terminal; COLUMNS overrides it


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    follows_terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(width=None if follows_terminal else PIPE_WIDTH).print(table)
