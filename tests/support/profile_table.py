"""Parses the table that torch's profiler prints."""

import re
from typing import NamedTuple


class Row(NamedTuple):
    name: str
    calls: int
    shapes: str


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def columns(text: str) -> list[str]:
    return next(_cells(line) for line in text.splitlines() if line.strip().startswith("Name "))


def rows(text: str, start: str) -> list[Row]:
    """The rows whose names start with `start`, sorted."""
    heads = columns(text)
    found = []
    for line in text.splitlines():
        if line.strip().startswith(start):
            cells = dict(zip(heads, _cells(line), strict=True))
            found.append(Row(cells["Name"], int(cells["# of Calls"]), cells["Input Shapes"]))
    return sorted(found)


#: The profiler logs start and stop to stderr in several writes: labels may stand between them.
LOG = re.compile(r"USDT:[^\]]*\] profiler_(start|stop)(\[\d+\] )?")


def without_log(err: str) -> str:
    return LOG.sub("", err).strip()
