"""The wheel and torch in an empty environment of an ordinary user, on a machine with 1 MB of
/dev/shm, without libfabric and without a compiler; also where no directory can be written."""

import json
import os
from pathlib import Path

import pytest
from support.commands import CommandResult
from support.fresh_machine import USER, FreshMachine, compilers, libfabric
from support.parameters import slow
from support.readme import ddp_script

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("wheels"),
    pytest.mark.skipif(os.geteuid() != 0, reason="changes the user and mounts file systems"),
]

READ_ONLY = "/usr"  # a directory that the user cannot write to
ONE_RANK = """
import torch
import torch.distributed as dist

dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(dist.get_backend(), x.tolist())
dist.destroy_process_group()
"""


@pytest.fixture
def fresh(installed) -> FreshMachine:
    return FreshMachine(installed, hidden=[*compilers(), *libfabric()])


@pytest.fixture
def nothing_writable(installed) -> FreshMachine:
    """With a compiler."""
    return FreshMachine(installed, hidden=[], read_only=[Path("/tmp"), Path("/var/tmp")])


def one_rank(machine: FreshMachine, backend: str = "ccl", **variables: str) -> CommandResult:
    return machine.run('python -c "$1"', ONE_RANK.format(backend=backend), **variables)


# ---- no compiler, no libfabric


def test_the_machine_is_as_described(fresh):
    script = "id -u; stat --file-system --format='%b %S' /dev/shm; command -v c++ g++ gcc || true"
    user, shared_memory = fresh.run(script).output.splitlines()
    blocks, block_bytes = map(int, shared_memory.split())
    assert (user, blocks * block_bytes) == (str(USER), 1 << 20)
    load = "import ctypes; ctypes.CDLL('libfabric.so.1')"
    assert "cannot open shared object file" in fresh.run('python -c "$1"', load).output


TORCHRUN = "python -m torch.distributed.run --standalone --nproc-per-node 2"


@pytest.mark.parametrize("launcher", [slow(TORCHRUN), "torch-ccl run -n 2"])
def test_readme_script(fresh, launcher):
    result = fresh.run(f'cd; echo "$1" > train.py; {launcher} train.py', ddp_script())
    assert result.returncode == 0, result.output
    assert result.output.count("ccl 2") == 2, result.output


@pytest.mark.slow
def test_doctor(fresh):
    """It warns that there is no libfabric, and finds no problem."""
    result = fresh.run("torch-ccl doctor --json")
    assert result.returncode == 0, result.output
    levels = {row["check"]: row["level"] for row in json.loads(result.output)}
    assert (levels["libfabric"], levels["two ranks"]) == ("warning", "ok"), result.output


# ---- another torch, no compiler


@pytest.mark.slow
def test_other_torch_without_a_compiler(fresh, other_torch):
    """One clear line for ccl; Gloo works as if we were not installed."""
    refused = one_rank(fresh, PYTHONPATH=str(other_torch))
    assert refused.returncode == 1
    assert refused.output.splitlines()[-1].startswith(
        "ImportError: torch-ccl has no extension for torch 2.99.0"
    ), refused.output
    assert refused.output.endswith(
        "no C++ compiler is installed (c++, g++, clang++): install g++\n"
    )
    gloo = one_rank(fresh, "gloo", PYTHONPATH=str(other_torch))
    assert (gloo.returncode, gloo.output) == (0, "gloo [1.0, 1.0, 1.0]\n")


# ---- directories that cannot be written


def test_nothing_can_be_written(nothing_writable):
    """The extension of the wheel needs no directory."""
    result = one_rank(nothing_writable, HOME=READ_ONLY, TMPDIR=READ_ONLY)
    assert (result.returncode, result.output) == (0, "ccl [1.0, 1.0, 1.0]\n")


def test_nothing_can_be_written_for_another_torch(nothing_writable, other_torch):
    where = {"HOME": READ_ONLY, "TMPDIR": READ_ONLY, "PYTHONPATH": str(other_torch)}
    result = one_rank(nothing_writable, **where)
    last = result.output.splitlines()[-1]
    assert result.returncode == 1
    assert "and no directory for a compiled one can be written" in last, result.output
    assert f"{READ_ONLY}/.cache" in last and f"/tmp/torch-ccl-{USER}" in last, result.output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("read_only", "cache"),
    [("HOME", f"/mnt/tmp/torch-ccl-{USER}"), ("TMPDIR", "/mnt/home/.cache/torch-ccl")],
)
def test_one_directory_is_enough_to_compile(nothing_writable, other_torch, read_only, cache):
    """The second process does not compile."""
    twice = 'python -c "$1"; python -c "$1"; ls "$2"/torch2.99.0-*/_C*.so'
    script = ONE_RANK.format(backend="ccl")
    variables = {read_only: READ_ONLY, "PYTHONPATH": str(other_torch)}
    result = nothing_writable.run(twice, script, cache, **variables)
    assert result.returncode == 0, result.output
    compiling, first, second, _ = result.output.splitlines()
    assert "compiling the extension for torch 2.99.0" in compiling
    assert first == second == "ccl [1.0, 1.0, 1.0]"
