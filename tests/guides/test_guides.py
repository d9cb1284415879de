"""Every command of docs/guides is run, where the guide's files are, and what it prints is checked.

A block of `bash` is run; a block of another kind is a file if the line above it names one at its
end (`train.py`:). On virtual hosts h1 and h2, in a container on one, or at the login of a Slurm.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.commands import ROOT
from support.documents import Block, blocks
from support.launchers import BOUND_S, INTEL_MPI, MPICH, OPEN_MPI, clean_environment
from support.mpi_hosts import run_over_hosts, write_launchers
from support.virtual_hosts import virtual_hosts

GUIDES = ROOT / "docs/guides"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Guide(NamedTuple):
    files: dict[str, str]
    commands: list[Block]


def read(name: str) -> Guide:
    guide = Guide({}, [])
    for block in blocks((GUIDES / name).read_text()):
        if block.kind == "bash":
            guide.commands.append(block)
        elif named := re.search(r"`([\w.]+)`[^`]*:$", block.title):
            guide.files[named[1]] = block.text
    return guide


def lines_about(pattern: str, lines: list[str]) -> list[str]:
    return sorted(line for line in lines if re.search(pattern, line))


# ---- MPI

SUM_OF = {2: [2.0] * 4, 4: [4.0] * 4}


def place(rank: int, size: int, launcher: str, label: str = "") -> str:
    host = 1 + rank * 2 // size if size == 4 else 1
    return f"{label}rank {rank} of {size} on h{host}, by {launcher}: {SUM_OF[size]}"


def expected_of_mpi(launcher: str, label: str) -> list[str]:
    """Returns the lines of two ranks, then of four with labels, then of four without."""
    return sorted(
        [place(rank, 2, launcher) for rank in range(2)]
        + [place(rank, 4, launcher, label.format(rank)) for rank in range(4)]
        + [place(rank, 4, launcher) for rank in range(4)]
    )


@pytest.mark.parametrize("mpiexec", [MPICH, INTEL_MPI], ids=["MPICH", "Intel MPI"])
def test_hydra(mpiexec):
    guide = read("mpi.md")
    commands = guide.commands[0].text
    _, out, _ = run_over_hosts(2, commands, guide.files, mpiexec)
    assert sorted(out) == expected_of_mpi("hydra", "[{}] ")


def test_open_mpi():
    guide = read("mpi.md")
    _, out, _ = run_over_hosts(2, guide.commands[1].text, guide.files, OPEN_MPI)
    assert sorted(out) == expected_of_mpi("Open MPI", "[1,{}]<stdout>:")


# ---- programs for other backends


@pytest.mark.parametrize("mpiexec", [MPICH, INTEL_MPI], ids=["MPICH", "Intel MPI"])
def test_from_torch_ccl(mpiexec):
    guide = read("from-torch-ccl.md")
    commands = "".join(block.text for block in guide.commands)
    _, out, _ = run_over_hosts(1, commands, guide.files, mpiexec)
    said = lines_about(r"^\[\d\]", out)
    assert said == [f"[{r}] rank {r} of 2: gradients are shared" for r in range(2)]
    assert lines_about("libfabric", out), "neither info nor doctor has said anything of it"


def run_here(guide: Guide, directory: Path, prefix: tuple[str, ...] = ()) -> list[str]:
    for name, text in guide.files.items():
        (directory / name).write_text(text)
    commands = "".join(block.text for block in guide.commands)
    path = f"{Path(sys.executable).parent}:{clean_environment()['PATH']}"
    finished = subprocess.run(
        [*prefix, "bash", "-euc", f"cd {directory}\n{commands}"],
        env=clean_environment(PATH=path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout.splitlines()


def test_from_gloo(tmp_path):
    out = run_here(read("from-gloo.md"), tmp_path)
    said = re.findall(r"rank \d: 1", "\n".join(out))
    assert sorted(said) == ["rank 0: 1", "rank 1: 1"]  # torchrun mixes lines and their ends
    assert len(lines_about("^all_reduce, float32, 2 ranks", out)) == 1, "the title of the table"
    assert len(lines_about(r"^│ +(8 B|1 MiB) +│", out)) == 2, "a row for each size"


def test_containers(tmp_path):
    with virtual_hosts(1) as (host,):
        inside = tuple(host.container("box").inside([]))
        out = run_here(read("containers.md"), tmp_path, inside)
    said = lines_about(r"rank \d", out)
    assert [f"[{r}] rank {r}: {[2.0] * 4}" for r in range(2)] == said


# ---- Slurm


def test_slurm(slurm, tmp_path):
    guide = read("slurm.md")
    for name, text in guide.files.items():
        (tmp_path / name).write_text(text)
    write_launchers(tmp_path / "bin", MPICH)
    path = f"{tmp_path}/bin:{slurm.environment()['PATH']}"
    ranks = [f"rank {rank} of 4 on n{1 + rank // 2}: {[4.0] * 4}" for rank in range(4)]
    counts = [3, 2, 1]  # of launches in each block
    for block, count in zip(guide.commands, counts, strict=True):
        finished = slurm.run("bash", "-euc", block.text, cwd=tmp_path, PATH=path)
        assert finished.code == 0, finished.out + finished.err
        if "torchrun" in block.text:  # mixes lines and their ends; the agents deal out the ranks
            said = re.findall(r"rank (\d) of 4 on n\d: \[4.0", finished.out)
            assert sorted(said) == list("0123")
        else:
            said = lines_about("^rank", finished.out.splitlines())
            assert said == sorted(ranks * count)
