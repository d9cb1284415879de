"""Extracts scripts and commands from documents, and lists the changes to them.

The documents are no part of this repository. A block is found by the title above it or by words in
it, and runs unchanged except for the rows of CHANGES, with the variables of VARIABLES added to the
environment. Changes and variables are printed with the results.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from support import composed_scripts
from support.commands import ROOT
from support.composed_scripts import Piece
from support.document_checks import PROMPT
from support.mpi_hosts import AS_ROOT, NETWORK
from support.standin_device import environment as device_environment


class Block(NamedTuple):
    kind: str  # the word after the fence
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
    """`document` is the prefix of the file name."""
    documents = sorted(directory.glob(f"{document}*"))
    assert len(documents) == 1, f"{len(documents)} documents {document}* in {directory}"
    return blocks(documents[0].read_text())


class Source(NamedTuple):
    """Identifies the block of a script or a command line."""

    document: str
    words: tuple[str, ...] = ()  # that only this block of the document contains
    title: str = ""  # the line above the block, if the words are not unique


def find(source: Source, found: list[Block]) -> Block:
    matching = [
        block
        for block in found
        if source.title in ("", block.title) and all(word in block.text for word in source.words)
    ]
    assert len(matching) == 1, f"{len(matching)} blocks of {source.document} look like {source}"
    return matching[0]


def cut(name: str, source: Source, directory: Path) -> str:
    """Returns the text to run."""
    return changed(name, find(source, blocks_of(source.document, directory)).text)


def compose(name: str, document: str, pieces: tuple[Piece, ...], directory: Path) -> str:
    """Assembles a program that the document shows in fragments."""
    found = blocks_of(document, directory)
    texts = [
        textwrap.indent(find(Source(document, (piece.words,)), found).text, "    " * piece.depth)
        for piece in pieces
    ]
    return changed(name, "".join(texts))


def commands(block: str) -> str:
    """A block with prompts shows commands and their output, one without shows only commands."""
    typed = [line[match.end() :] for line in block.splitlines() if (match := PROMPT.match(line))]
    return "\n".join(typed) + "\n" if typed else block


# ---- changes: each row applies to the scripts and lines whose names start with its name


class Edit(NamedTuple):
    name: str
    old: str  # its first occurrence is replaced
    new: str
    reason: str

    def apply(self, text: str) -> str:
        assert self.old in text, f"{self.name} has no {self.old!r} to replace"
        return text.replace(self.old, self.new, 1)

    def __str__(self) -> str:
        return f"{self.old!r} becomes {self.new!r}: {self.reason}"


class Move(NamedTuple):
    name: str
    start: str  # from here to the end
    before: str  # the first line with these words
    reason: str

    def apply(self, text: str) -> str:
        kept, start, moved = text.partition(self.start)
        assert start, f"{self.name} has no {self.start!r} to move"
        return insert(f"{start}{moved}\n\n", self.before, kept)

    def __str__(self) -> str:
        return f"{self.start!r} and the rest is moved before {self.before!r}: {self.reason}"


class Addition(NamedTuple):
    name: str
    before: str  # the first line with these words, or END
    text: str
    reason: str

    def apply(self, text: str) -> str:
        return text + self.text if self.before == END else insert(self.text, self.before, text)

    def __str__(self) -> str:
        position = "At the end" if self.before == END else f"Before {self.before!r}"
        text = textwrap.indent(self.text.strip("\n"), "    | ")
        return f"{position}: {self.reason}\n{text}"


END = ""


def insert(new: str, words: str, text: str) -> str:
    """Inserts before the first line with these words."""
    assert words in text, f"there is no {words!r} to insert before"
    begin = text.rfind("\n", 0, text.index(words)) + 1
    return text[:begin] + new + text[begin:]


Change = Edit | Move | Addition

CALL_OF_MAIN = "\n    main(dist.get_rank(), dist.get_world_size())"
RESULTS = """
    print(f"data {[input.tolist(), labels.tolist()]}")
    print(f"weights {[p.flatten().tolist() for p in model.parameters()]}")
"""
MEMORY = """
import memory_growth, print_environment
print_environment.show(grown_kib=memory_growth.grown_kib(model))
"""
UT_MEMORY = "mpiexec.hydra of ut_memory.py"
ONE_HOST = f"{UT_MEMORY}, one host"
NO_PRELOAD = f"{ONE_HOST}, torch's own OpenMP"
TWO_HOSTS = f"{UT_MEMORY}, two hosts"
EXAMPLE_LINE = "mpirun of example.py"
PROFILING_LINE = "mpirun of profiling.py"
TRAINING = "training.py"
SPAWN = "main_worker by mp.spawn"
SCALING = "main_worker by single_card_dist"
SCALING_ON_CPU = f"{SCALING} on the CPU"
SCALING_ON_DEVICE = f"{SCALING} on an accelerator"
DDP = "Example_DDP.py"
DDP_ON_CPU = f"{DDP} on the CPU"
DDP_ON_DEVICE = f"{DDP} on an accelerator"
DDP_LINE = "mpirun of Example_DDP.py"
PIP_LINE = "pip install of oneccl_bind_pt"
BATCH = "sbatch of batch.sh"
MASKS = "[0x0000000FFFFFF0,0xFFFFFF00000000]"
CORES = "two cores, in the opposite order of Intel MPI's default"
OPEN = "not shown in the document"
CHANGES: tuple[Change, ...] = (
    Edit("example.py", ", ...", "", "init_process_group needs no more than the backend's name"),
    Edit("example.py", ", ...", "", "neither does DistributedDataParallel need more than a model"),
    Edit("example.py", "...", "import os", "the script uses os"),
    Edit("example.py", "...", "model = torch.nn.Linear(4, 5)", "the script wraps a model"),
    Edit("profiling.py", ", ...", "", "init_process_group needs no more than the backend's name"),
    Edit("ptdist.py", "'mpi')", f"'mpi'){CALL_OF_MAIN}", "nothing calls main"),
    Addition(
        "ut_memory.py",
        END,
        MEMORY,
        "not shown: the demo, with values for the checks",
    ),
    Edit(DDP_ON_CPU, '"xpu:{}".format(local_rank)', '"cpu"', "the device's name"),
    Edit(DDP_ON_CPU, "device_ids=[device]", "device_ids=None", "DDP takes no others on the CPU"),
    Edit(DDP_ON_DEVICE, "torch.xpu", "torch.standin", "the device's name"),
    Edit(DDP_ON_DEVICE, '"xpu:{}"', '"standin:{}"', "the device's name"),
    Addition(DDP, END, RESULTS, "prints values for the checks"),
    Edit(UT_MEMORY, MASKS, "[0x2,0x1]", CORES),
    Edit(NO_PRELOAD, "LD_PRELOAD", "NOT_PRELOADED", "the document also allows torch's own OpenMP"),
    Edit(TWO_HOSTS, "10.xxx.xxx.xxx", f"{NETWORK}.0.1", "the first host"),
    Edit(EXAMPLE_LINE, "<ccl_install_path>", "~/.local", "where it was installed"),
    Edit(EXAMPLE_LINE, "<N>", "2", "filled in"),
    Edit(EXAMPLE_LINE, "<PPN>", "2", "filled in"),
    Edit(EXAMPLE_LINE, "<hostfile>", "hostfile", "filled in"),
    Edit(PROFILING_LINE, "<ccl_install_path>", "~/.local", "where it was installed"),
    Edit(PIP_LINE, "--extra-index-url <REPO_URL>", "--no-index --find-links $DIST", "our wheels"),
    Move(TRAINING, "def sync_initial_weights", "model = LeNet()", "defined before they are used"),
    Addition(TRAINING, "def sync_initial_weights", composed_scripts.TRAINING_START, OPEN),
    Addition(TRAINING, END, composed_scripts.TRAINING_END, "prints values for the checks"),
    Edit(SPAWN, '"nccl"', '"ccl"', "the device is the CPU"),
    Edit(SPAWN, "ngpus_per_ndoe", "ngpus_per_node", "a typo"),
    Edit(SPAWN, "torch.save(...)", "torch.save(model.state_dict(), args.file)", "filled in"),
    Addition(SPAWN, "import torch.distributed as dist", composed_scripts.SPAWN_START, OPEN),
    Addition(SPAWN, "train_sampler.set_epoch(", composed_scripts.SPAWN_LOOP, OPEN),
    Addition(
        SPAWN, "if args.rank", composed_scripts.SPAWN_STEP, f"{OPEN}; prints samples for the checks"
    ),
    Addition(
        SPAWN,
        "import torch.multiprocessing",
        composed_scripts.SPAWN_MAIN,
        f"{OPEN}; the document shows it first",
    ),
    Edit(SCALING_ON_CPU, '"xpu:{}".format(local_rank)', '"cpu"', "the device's name"),
    Edit(SCALING_ON_DEVICE, '"xpu:{}"', '"standin:{}"', "the device's name"),
    Addition(SCALING, "try:", composed_scripts.SCALING_START, OPEN),
    Addition(SCALING, "dist = single_card_dist(", composed_scripts.SCALING_WORKER, OPEN),
    Addition(
        SCALING,
        "multi_process_spawn(",
        composed_scripts.SCALING_LOOP,
        f"{OPEN}, except a hint at the loop; prints samples and gradients for the checks",
    ),
    Addition(SCALING, END, composed_scripts.SCALING_END, "the exit code is checked"),
)


def changed(name: str, text: str, changes: tuple[Change, ...] = CHANGES) -> str:
    for change in changes:
        if name.startswith(change.name):
            text = change.apply(text)
    return text


# ---- variables


class Variables(NamedTuple):
    name: str  # how the names of its scripts begin
    values: Callable[[], dict[str, str]]
    reason: str

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.values().items())
        return f"{values}: {self.reason}"


EXTENSION = ROOT / "compat/intel_extension_for_pytorch/src/torch_ccl_ipex_compat/modules"


def with_extension() -> dict[str, str]:
    return {"PYTHONPATH": str(EXTENSION)}


def with_devices() -> dict[str, str]:
    made = device_environment(devices=2)
    paths = f"{made['PYTHONPATH']}:{EXTENSION}"
    return {**made, "PYTHONPATH": paths, "CCL_DEVICES": "standin"}


IPEX = "intel_extension_for_pytorch is available as its wheel would install it"
DEVICES = f"a machine with two accelerators, on which {IPEX}"
VARIABLES = (
    Variables("ptdist.py", lambda: {"CCL_REPLACE": "mpi"}, "torch's wheel has no backend mpi"),
    Variables(DDP_ON_CPU, with_extension, IPEX),
    Variables(DDP_ON_DEVICE, with_devices, DEVICES),
    Variables(SCALING_ON_CPU, with_extension, IPEX),
    Variables(SCALING_ON_DEVICE, with_devices, DEVICES),
    Variables(BATCH, lambda: {"SBATCH_WAIT": "1"}, "as sbatch --wait: the output is read next"),
    Variables(BATCH, lambda: AS_ROOT, "Open MPI refuses root without it"),
)


def variables(name: str) -> dict[str, str]:
    rows = [row.values() for row in VARIABLES if name.startswith(row.name)]
    return {variable: value for row in rows for variable, value in row.items()}


def all_changes(name: str) -> list[str]:
    return [str(row) for row in (*CHANGES, *VARIABLES) if name.startswith(row.name)]
