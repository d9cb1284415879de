"""Tables on stdout, as wide as the terminal."""

import os
import sys
from collections.abc import Iterable, Sequence

PIPE_WIDTH = 150  # where stdout is not a terminal; COLUMNS overrides it


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str | None = None,
    figures: bool = False,
) -> None:
    """With `figures` every column but the first is right-aligned."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, overflow="fold", justify="right" if figures and index else "left")
    for row in rows:
        table.add_row(*row)
    follows_terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(width=None if follows_terminal else PIPE_WIDTH).print(table)
