"""Cuts scripts and commands out of the documents, and says what is changed in them.

The documents themselves are no part of this repository. A block is found by the name above it or by
the words in it, and runs as it stands there but for the rows of EDITS.
"""

import textwrap
from pathlib import Path
from typing import NamedTuple

from checks import PROMPT
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


def blocks_of(document: str, directory: Path) -> list[Block]:
    """`document` is how the file's name begins."""
    documents = sorted(directory.glob(f"{document}*"))
    assert len(documents) == 1, f"{len(documents)} documents {document}* in {directory}"
    return blocks(documents[0].read_text())


class Source(NamedTuple):
    """Where a script or a command line stands."""

    document: str
    words: tuple[str, ...] = ()  # what only this block of the document contains
    title: str = ""  # the line above the block, if that tells it from others


def find(source: Source, found: list[Block]) -> Block:
    matching = [
        block
        for block in found
        if source.title in ("", block.title) and all(word in block.text for word in source.words)
    ]
    assert len(matching) == 1, f"{len(matching)} blocks of {source.document} look like {source}"
    return matching[0]


def cut(name: str, source: Source, directory: Path) -> str:
    """The text as it is to be run."""
    return edited(name, find(source, blocks_of(source.document, directory)).text)


def commands(block: str) -> str:
    """A block with a prompt shows commands and what they print, one without only commands."""
    typed = [line[match.end() :] for line in block.splitlines() if (match := PROMPT.match(line))]
    return "\n".join(typed) + "\n" if typed else block


# ---- what is changed


class Edit(NamedTuple):
    name: str  # of the script or the line
    old: str  # its first occurrence is replaced, in the order of the rows
    new: str
    reason: str


CALL_OF_MAIN = "\n    main(dist.get_rank(), dist.get_world_size())"
ONE_HOST = "mpiexec.hydra of ut_memory.py, one host"
NO_PRELOAD = "mpiexec.hydra of ut_memory.py, one host, torch's own OpenMP"
TWO_HOSTS = "mpiexec.hydra of ut_memory.py, two hosts"
EXAMPLE_LINE = "mpirun of example.py"
PROFILING_LINE = "mpirun of profiling.py"
SPAWN = "main_worker by mp.spawn"
SCALING_ON_CPU = "main_worker by single_card_dist on the CPU"
SCALING_ON_DEVICE = "main_worker by single_card_dist on an accelerator"
DDP_ON_CPU = "Example_DDP.py on the CPU"
DDP_ON_DEVICE = "Example_DDP.py on an accelerator"
DDP_LINE = "mpirun of Example_DDP.py"
PIP_LINE = "pip install of oneccl_bind_pt"
MASKS = "[0x0000000FFFFFF0,0xFFFFFF00000000]"
CORES = "two cores, each for the rank to which Intel MPI would not give it by itself"
EDITS = (
    Edit("example.py", ", ...", "", "init_process_group needs no more than the backend's name"),
    Edit("example.py", ", ...", "", "neither does DistributedDataParallel need more than a model"),
    Edit("example.py", "...", "import os", "the script uses os"),
    Edit("example.py", "...", "model = torch.nn.Linear(4, 5)", "the script wraps a model"),
    Edit("profiling.py", ", ...", "", "init_process_group needs no more than the backend's name"),
    Edit("ptdist.py", "'mpi')", f"'mpi'){CALL_OF_MAIN}", "nothing calls main"),
    Edit(SCALING_ON_CPU, '"xpu:{}".format(local_rank)', '"cpu"', "the device's name"),
    Edit(SCALING_ON_DEVICE, '"xpu:{}"', '"standin:{}"', "the device's name"),
    Edit(DDP_ON_CPU, '"xpu:{}".format(local_rank)', '"cpu"', "the device's name"),
    Edit(DDP_ON_CPU, "device_ids=[device]", "device_ids=None", "DDP takes no others on the CPU"),
    Edit(DDP_ON_DEVICE, "torch.xpu", "torch.standin", "the device's name"),
    Edit(DDP_ON_DEVICE, '"xpu:{}"', '"standin:{}"', "the device's name"),
    Edit(ONE_HOST, MASKS, "[0x2,0x1]", CORES),
    Edit(NO_PRELOAD, MASKS, "[0x2,0x1]", CORES),
    Edit(NO_PRELOAD, "LD_PRELOAD", "NOT_PRELOADED", "the document also allows torch's own OpenMP"),
    Edit(TWO_HOSTS, MASKS, "[0x2,0x1]", CORES),
    Edit(TWO_HOSTS, "10.xxx.xxx.xxx", f"{NETWORK}.0.1", "the first host"),
    Edit(EXAMPLE_LINE, "<ccl_install_path>", "~/.local", "where it was installed"),
    Edit(EXAMPLE_LINE, "<N>", "2", "filled in"),
    Edit(EXAMPLE_LINE, "<PPN>", "2", "filled in"),
    Edit(EXAMPLE_LINE, "<hostfile>", "hostfile", "filled in"),
    Edit(PROFILING_LINE, "<ccl_install_path>", "~/.local", "where it was installed"),
    Edit(PIP_LINE, "--extra-index-url <REPO_URL>", "--no-index --find-links $DIST", "our wheels"),
    Edit(SPAWN, '"nccl"', '"ccl"', "the device is the CPU"),
    Edit(SPAWN, "ngpus_per_ndoe", "ngpus_per_node", "a slip of the pen"),
    Edit(SPAWN, "torch.save(...)", "torch.save(model.state_dict(), args.file)", "filled in"),
)


def edited(name: str, text: str, edits: tuple[Edit, ...] = EDITS) -> str:
    for edit in edits:
        if edit.name == name:
            assert edit.old in text, f"{name} has no {edit.old!r} to replace"
            text = text.replace(edit.old, edit.new, 1)
    return text
