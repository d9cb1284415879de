"""Which scripts the documents hold, how to find them, what is changed in them and what they print.

The documents themselves are no part of this repository. A script is found by the name above its
code block or by the calls in it, and runs as it stands there but for the rows of EDITS.
"""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import profile_table
from launching import SIZE, Finished


class Block(NamedTuple):
    kind: str  # the word behind the fence
    title: str  # the last line before the block that is not empty
    text: str


def blocks(document: str) -> list[Block]:
    """The fenced code blocks of a markdown document, without its indentation."""
    found, title, kind, lines = [], "", None, []
    for line in document.splitlines():
        fence = line.strip().startswith("```")
        if kind is None and fence:
            kind, lines = line.strip().strip("`"), []
        elif kind is not None and fence:
            found.append(Block(kind, title, textwrap.dedent("\n".join(lines)) + "\n"))
            kind = None
        elif kind is not None:
            lines.append(line)
        elif line.strip():
            title = line.strip()
    return found


# ---- what the ranks must have printed


def says_nothing(rank: Finished) -> None:
    assert not rank.out, rank.out
    assert not rank.err, rank.err


def is_place(line: str, rank: Finished) -> bool:
    """A line with two numbers: the rank, then the size."""
    return re.findall(r"\d+", line) == [str(rank.rank), str(SIZE)]


def says_place(rank: Finished) -> None:
    lines = rank.out.splitlines()
    assert len(lines) == 1 and is_place(lines[0], rank), rank.out
    assert not rank.err, rank.err


def says_place_and_profile(rank: Finished) -> None:
    place, table = rank.out.split("\n", 1)
    assert is_place(place, rank), rank.out
    assert profile_table.rows(table, "pg::") == [
        profile_table.Row("pg::allreduce", 10, "[[2, 2]]"),
        profile_table.Row("pg::allreduce", 10, "[[4, 4]]"),
        profile_table.Row("pg::wait::allreduce::sz:16", 10, "[]"),
        profile_table.Row("pg::wait::allreduce::sz:4", 10, "[]"),
    ], table
    heads = {"Name", "CPU total %", "CPU total", "CPU time avg", "Input Shapes"}
    assert heads <= set(profile_table.columns(table)), table
    assert "Self CPU time total: " in table
    assert not profile_table.without_log(rank.err), rank.err


# ---- the tables


class Script(NamedTuple):
    document: str  # how the file's name begins
    name: str
    check: Callable[[Finished], None]
    title: str = ""  # the name above the block, if it has one
    calls: tuple[str, ...] = ()  # what only this block of the document contains


SCRIPTS = (
    Script("000", "demo.py", says_nothing, calls=("DDP(", ".step()")),
    Script("001", "example.py", says_place, title="example.py"),
    Script("001", "profiling.py", says_place_and_profile, title="profiling.py"),
)


class Edit(NamedTuple):
    script: str
    old: str  # its first occurrence is replaced, in the order of the rows
    new: str
    reason: str


EDITS = (
    Edit("example.py", ", ...", "", "init_process_group needs no more than the backend's name"),
    Edit("example.py", ", ...", "", "neither does DistributedDataParallel need more than a model"),
    Edit("example.py", "...", "import os", "the script uses os"),
    Edit("example.py", "...", "model = torch.nn.Linear(4, 5)", "the script wraps a model"),
    Edit("profiling.py", ", ...", "", "init_process_group needs no more than the backend's name"),
)


# ---- cutting


def find(script: Script, found: list[Block]) -> Block:
    matching = [
        block
        for block in found
        if block.kind == "python"
        and script.title in ("", block.title)
        and all(call in block.text for call in script.calls)
    ]
    assert len(matching) == 1, f"{len(matching)} blocks look like {script.name}"
    return matching[0]


def edited(name: str, text: str, edits: tuple[Edit, ...] = EDITS) -> str:
    for edit in edits:
        if edit.script == name:
            assert edit.old in text, f"{name} has no {edit.old!r} to replace"
            text = text.replace(edit.old, edit.new, 1)
    return text


def cut(script: Script, directory: Path) -> str:
    """The script as it is to be run."""
    documents = sorted(directory.glob(f"{script.document}*"))
    assert len(documents) == 1, f"{len(documents)} documents {script.document}* in {directory}"
    return edited(script.name, find(script, blocks(documents[0].read_text())).text)


def fixed_port(text: str) -> int | None:
    """The port that a script sets itself: a launcher that opens one must be told the same."""
    match = re.search(r"MASTER_PORT\W+(\d+)", text)
    return int(match[1]) if match else None
