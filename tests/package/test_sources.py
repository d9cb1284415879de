"""The source archive, and pip's ordinary installation from sources, in an isolated environment."""

import os
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from support.commands import ROOT, run, shell
from support.python_environments import INHERITED, Environment, make_environment

pytestmark = [pytest.mark.timeout(3600), pytest.mark.xdist_group("wheels")]

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CACHE = ROOT / "build/release/CMakeCache.txt"
ONE_RANK = """
import time
began = time.monotonic()
import torch
import torch.distributed as dist
dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(x.tolist())
print(time.monotonic() - began)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    dist = tmp_path_factory.mktemp("sdist")
    shell('make sdist DIST="$1" VENV="$2"', dist, sys.prefix, cwd=ROOT, env=INHERITED)
    (path,) = dist.iterdir()
    return path


@pytest.fixture(scope="module")
def build_requirements(tmp_path_factory) -> Path:
    """What pip installs into its isolated environment, downloaded as the caller's pip does it."""
    directory = tmp_path_factory.mktemp("requirements")
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", directory]
    finished = run([*command, *requirements], env=os.environ)
    assert finished.returncode == 0, finished.output
    return directory


def test_contents(archive):
    """What building needs; no tests, no pages, nothing that a build made."""
    assert archive.name == f"torch_ccl-{VERSION}.tar.gz"
    with tarfile.open(archive) as tar:
        names = [name.partition("/")[2] for name in tar.getnames()]
    directories = {"binding", "cmake", "env", "include", "licenses", "python", "src"}
    files = {"CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.py"}
    assert {name.split("/")[0] for name in names} == directories | files
    listed = 'git ls-files --cached --others --exclude-standard "$@"'
    tracked = shell(listed, *directories, cwd=ROOT).splitlines()
    assert sorted(set(names) - files) == sorted(tracked)


def start(environment: Environment, cache: Path) -> tuple[float, list[str]]:
    """Seconds from the start of `import torch` to a result, and what else was printed."""
    printed = environment.shell('python -c "$1"', ONE_RANK, CCL_CACHE_DIR=str(cache))
    *others, result, seconds = printed.splitlines()
    assert result == "[1.0, 1.0, 1.0]", printed
    return float(seconds), others


@pytest.mark.slow
@pytest.mark.parametrize("source", ["archive", "tree"])
def test_isolated_build(source, archive, build_requirements, tmp_path):
    """pip finds nothing but the build requirements, so it cannot install a second torch. The first
    use compiles the extension. The next build without isolation does not find this environment."""
    environment = make_environment(tmp_path / "venv")
    environment.shell(
        'python -m pip install --find-links "$1" "$2"',
        build_requirements,
        archive if source == "archive" else ROOT,
    )
    assert not CACHE.exists() or str(environment.path) not in CACHE.read_text()
    assert not list(environment.site_packages.glob("torch-*"))
    assert not list(environment.site_packages.glob("torch_ccl/extensions/*"))

    first, printed = start(environment, tmp_path / "cache")
    assert len(printed) == 1 and "compiling the extension" in printed[0], printed
    second, printed = start(environment, tmp_path / "cache")
    assert printed == []
    assert second < first / 2
