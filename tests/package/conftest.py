"""The wheels, built once for all tests of this folder: those are of the xdist_group "wheels"."""

import re
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, shell
from support.python_environments import INHERITED, make_environment


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """The directory that `make wheel` fills."""
    dist = tmp_path_factory.mktemp("dist")
    shell('make wheel DIST="$1" VENV="$2"', dist, sys.prefix, cwd=ROOT, env=INHERITED)
    return dist


@pytest.fixture(scope="session")
def installed(wheels, tmp_path_factory):
    """An environment with torch and the wheels."""
    environment = make_environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.shell('python -m pip install --no-index --find-links "$1" oneccl_bind_pt', wheels)
    return environment


@pytest.fixture(scope="session")
def other_torch(installed) -> Path:
    """A directory for PYTHONPATH: the torch of `installed` with the version number 2.99.0."""
    path = installed.path.with_name("other_torch")
    (path / "torch").mkdir(parents=True)
    for entry in (installed.path / "others/torch").resolve().iterdir():
        (path / "torch" / entry.name).symlink_to(entry)
    version = path / "torch/version.py"
    text, count = re.subn(r"(?m)^__version__ = .*", "__version__ = '2.99.0'", version.read_text())
    assert count == 1
    version.unlink()
    version.write_text(text)
    return path
