"""One wheel with several torches: with an extension in the wheel, compiled, or without a compiler.

`make test-wheel TORCH="2.12.1 2.15.0"` names them; otherwise it is the torch of the tests. WHEEL is
the wheel file; otherwise it is built.
"""

import os
import re
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from support.commands import ROOT
from support.python_environments import Environment, make_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("wheels")]

ENVIRONMENTS = os.environ.get("TORCH_ENVIRONMENTS", "").split() or [sys.prefix]
COMPILING = "torch-ccl: compiling the extension for torch "

ONE_RANK = """
import sys
import time

import torch
import torch.distributed as dist

began = time.monotonic()
backend = sys.argv[1]
dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
seconds = time.monotonic() - began
dist.destroy_process_group()
extension = getattr(sys.modules.get("torch_ccl._C"), "__file__", "")
print(torch.__version__, x.tolist() == [1.0] * 3, extension, f"{seconds:.3f}", sep="\\t")
"""


class Start(NamedTuple):
    """What a process with one rank reports."""

    torch: str
    extension: str
    seconds: float
    messages: list[str]


@pytest.fixture(scope="session")
def wheel(request) -> Path:
    if named := os.environ.get("WHEEL"):
        return ROOT / named
    (path,) = request.getfixturevalue("wheels").glob("torch_ccl-*.whl")
    return path


@pytest.fixture(scope="module", params=ENVIRONMENTS, ids=lambda path: Path(path).name)
def environment(request, wheel, tmp_path_factory) -> Environment:
    """An empty environment with one of the torches and the wheel."""
    made = make_environment(tmp_path_factory.mktemp("torch") / "venv", ROOT / request.param)
    made.shell('python -m pip install --no-index --no-deps "$1"', wheel)
    return made


def start(environment: Environment, backend: str, cache: Path, **variables: str) -> Start:
    where = {"CCL_CACHE_DIR": str(cache), **variables}
    printed = environment.shell('python -c "$@"', ONE_RANK, backend, **where)
    *messages, last = printed.splitlines()
    version, is_right, extension, seconds = last.split("\t")
    assert is_right == "True", printed
    return Start(version, extension, float(seconds), messages)


def is_in_wheel(torch: str, wheel: Path) -> bool:
    minor = re.match(r"\d+\.\d+", torch)[0]
    with zipfile.ZipFile(wheel) as file:
        return any(f"/extensions/torch{minor}/" in name for name in file.namelist())


def test_two_starts(environment, wheel, tmp_path):
    """The first compiles if the wheel has no extension; the second never does."""
    first = start(environment, "ccl", tmp_path)
    second = start(environment, "ccl", tmp_path)
    print(f"torch {first.torch}: {first.seconds} s, then {second.seconds} s ({second.extension})")
    compiled = not is_in_wheel(first.torch, wheel)
    assert Path(first.extension).is_relative_to(tmp_path if compiled else environment.path)
    assert len(first.messages) == compiled and all(COMPILING in line for line in first.messages)
    assert second.extension == first.extension and second.messages == []
    assert second.seconds < 10  # compiling takes longer


def test_without_a_compiler(environment, wheel, tmp_path):
    """The wheel's extension, or one clear line. Gloo works as if we were not installed."""
    gloo = start(environment, "gloo", tmp_path, CXX="no-compiler")
    assert (gloo.extension, gloo.messages) == ("", [])
    if is_in_wheel(gloo.torch, wheel):
        start(environment, "ccl", tmp_path, CXX="no-compiler")
        return
    printed = environment.shell(
        'python -c "$@" 2>&1 || true',
        ONE_RANK,
        "ccl",
        CXX="no-compiler",
        CCL_CACHE_DIR=str(tmp_path),
    )
    last = printed.splitlines()[-1]
    assert last.startswith(f"ImportError: torch-ccl has no extension for torch {gloo.torch}")
    assert last.endswith("no C++ compiler is installed (no-compiler): install g++")
