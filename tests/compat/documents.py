"""Which scripts the documents hold, how to find them, what is changed in them and what they print.

The documents themselves are no part of this repository. A script is found by the name above its
code block or by the calls in it, and runs as it stands there but for the rows of EDITS. So does a
block of commands that starts a script over several hosts.
"""

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import profile_table
from launching import SIZE, Finished
from over_hosts import NETWORK


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


# ---- what the ranks on several hosts must have printed, together


def says_same(lines: list[str], block: str, hosts: list[str]) -> None:
    """What the document shows below the command, in any order."""
    shown = [line for line in block.splitlines() if line and not PROMPT.match(line)]
    assert sorted(lines) == sorted(shown), lines


def says_growth(lines: list[str], block: str, hosts: list[str]) -> None:
    """Every rank says once, behind its label, that it is where it should be and has not grown."""
    size = int(re.search(r"-np? (\d+)", block)[1])
    each = int(re.search(r"-ppn (\d+)", block)[1])
    found = sorted(LABELLED_GROWTH.fullmatch(line).groups() for line in lines)
    expected = [(str(rank), str(rank), str(size), hosts[rank // each]) for rank in range(size)]
    assert [place for *place, _ in found] == [list(place) for place in expected], lines
    assert all(int(kib) <= GROWTH_KIB for *_, kib in found), lines


GROWTH_KIB = 256  # in 1000 steps
LABELLED_GROWTH = re.compile(r"\[(\d+)\] rank (\d+) of (\d+) on (\S+) has grown by (-?\d+) KiB")
PROMPT = re.compile(r"\S+@\S+\$ ")


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


class HostsLine(NamedTuple):
    """Commands that start a script over several hosts."""

    document: str
    name: str
    words: tuple[str, ...]  # what only this block of the document contains
    hosts: int
    script: str  # the name in the command
    calls: tuple[str, ...]  # what only the script's block contains
    check: Callable[[list[str], str, list[str]], None]  # lines of output, the block, hosts' names
    ending: str = ""  # what the script must do on top


HOSTS_LINES = (
    HostsLine(
        "000",
        "mpiexec.hydra of ut_memory.py",
        ("-f hostfile", "ut_memory.py"),
        2,
        "ut_memory.py",
        ("DDP(", ".step()"),
        says_growth,
        ending="import memory_growth\nmemory_growth.show(model)\n",
    ),
    HostsLine(
        "003",
        "mpiexec of ptdist.py",
        ("-hosts", "ptdist.py"),
        2,
        "ptdist.py",
        ("'ptdist.py'",),
        says_same,
    ),
)


class Edit(NamedTuple):
    script: str
    old: str  # its first occurrence is replaced, in the order of the rows
    new: str
    reason: str


CALL_OF_MAIN = "\n    main(dist.get_rank(), dist.get_world_size())"
EDITS = (
    Edit("example.py", ", ...", "", "init_process_group needs no more than the backend's name"),
    Edit("example.py", ", ...", "", "neither does DistributedDataParallel need more than a model"),
    Edit("example.py", "...", "import os", "the script uses os"),
    Edit("example.py", "...", "model = torch.nn.Linear(4, 5)", "the script wraps a model"),
    Edit("profiling.py", ", ...", "", "init_process_group needs no more than the backend's name"),
    Edit("ptdist.py", "import torch\n", "import torch, torch_ccl\n", "reads rank and size"),
    Edit("ptdist.py", "'mpi'", "'ccl'", "torch's wheel has no backend mpi"),
    Edit("ptdist.py", "'ccl')", f"'ccl'){CALL_OF_MAIN}", "nothing calls main"),
    Edit("mpiexec.hydra of ut_memory.py", "10.xxx.xxx.xxx", f"{NETWORK}.0.1", "the first host"),
    Edit("mpiexec.hydra of ut_memory.py", "LD_PRELOAD", "NOT_PRELOADED", "libiomp5 is not here"),
)


# ---- cutting


def find(script: Script, found: list[Block]) -> Block:
    matching = [block for block in found if script.title in ("", block.title)]
    return only_one(script.name, matching, "python", script.calls)


def only_one(name: str, found: list[Block], kind: str | None, words: tuple[str, ...]) -> Block:
    """The block of a kind, or of any, that contains all of the words."""
    matching = [
        block
        for block in found
        if kind in (None, block.kind) and all(word in block.text for word in words)
    ]
    assert len(matching) == 1, f"{len(matching)} blocks look like {name}"
    return matching[0]


def edited(name: str, text: str, edits: tuple[Edit, ...] = EDITS) -> str:
    for edit in edits:
        if edit.script == name:
            assert edit.old in text, f"{name} has no {edit.old!r} to replace"
            text = text.replace(edit.old, edit.new, 1)
    return text


def blocks_of(document: str, directory: Path) -> list[Block]:
    documents = sorted(directory.glob(f"{document}*"))
    assert len(documents) == 1, f"{len(documents)} documents {document}* in {directory}"
    return blocks(documents[0].read_text())


def cut(script: Script, directory: Path) -> str:
    """The script as it is to be run."""
    found = blocks_of(script.document, directory)
    return edited(script.name, find(script, found).text)


def cut_hosts_line(line: HostsLine, directory: Path) -> tuple[str, str]:
    """The block with the commands, and the script that they start."""
    found = blocks_of(line.document, directory)
    block = only_one(line.name, found, None, line.words).text
    script = only_one(line.script, found, "python", line.calls).text
    return edited(line.name, block), edited(line.script, script) + line.ending


def commands(block: str) -> str:
    """A block with a prompt shows commands and what they print, one without only commands."""
    typed = [line[match.end() :] for line in block.splitlines() if (match := PROMPT.match(line))]
    return "\n".join(typed) + "\n" if typed else block


def fixed_port(text: str) -> int | None:
    """The port that a script sets itself: a launcher that opens one must be told the same."""
    match = re.search(r"MASTER_PORT\W+(\d+)", text)
    return int(match[1]) if match else None
