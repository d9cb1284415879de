"""Python virtual environments with torch but without torch_ccl, to install into."""

import sys
import venv
from pathlib import Path
from typing import NamedTuple

from support.commands import shell
from support.launchers import clean_environment

OURS = ("torch_ccl", "oneccl_bind")  # prefixes of names in site-packages

# Variables that redirect pip, Python or the loader are not inherited from the caller.
NOT_INHERITED = (
    *("PIP_", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("MAKEFLAGS", "CXX", "TORCH"),  # of `make test`
)
INHERITED = {
    **{k: v for k, v in clean_environment().items() if not k.startswith(NOT_INHERITED)},
    "PIP_NO_INDEX": "1",
    "PIP_CONFIG_FILE": "/dev/null",
}


class Environment(NamedTuple):
    """A Python virtual environment."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin/python"

    @property
    def site_packages(self) -> Path:
        return site_packages(self.path)

    def variables(self, **more: str) -> dict[str, str]:
        """The variables of a shell that has activated it."""
        path = f"{self.path}/bin:{INHERITED['PATH']}"
        return {**INHERITED, "VIRTUAL_ENV": str(self.path), "PATH": path, **more}

    def shell(self, script: str, *arguments, cwd=None, **variables: str) -> str:
        """Returns the output of a bash script; its exit code must be 0."""
        return shell(script, *arguments, cwd=cwd or self.path, env=self.variables(**variables))


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))


def make_environment(path: Path, seen: Path = Path(sys.prefix)) -> Environment:
    """It sees the packages of the environment `seen`, except ours, through a .pth file: pip does
    not uninstall packages outside of its environment."""
    venv.create(path, symlinks=True, with_pip=False)
    others = path / "others"
    others.mkdir()
    for entry in site_packages(seen).iterdir():
        if not entry.name.startswith(OURS):
            (others / entry.name).symlink_to(entry)
    environment = Environment(path)
    (environment.site_packages / "others.pth").write_text(f"{others}\n{packages_of_python(seen)}")
    return environment


def packages_of_python(environment: Path) -> str:
    """Lines of a .pth file: where tools/setup.sh found the torch that the environment uses.

    Python does not read the .pth files of a directory that a .pth file names.
    """
    path = site_packages(environment) / "packages_of_python.pth"
    return path.read_text() if path.exists() else ""
