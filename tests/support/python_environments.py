"""Virtual environments of Python that have torch and nothing of ours, to install into."""

import sysconfig
import venv
from pathlib import Path
from typing import NamedTuple

from support.commands import shell
from support.launchers import clean_environment

OURS = ("torch_ccl", "oneccl_bind")  # how the names in site-packages begin

# Whoever runs the tests may have said where packages and libraries are: that is not passed on.
LEADING_ASTRAY = ("PIP_", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "MAKEFLAGS", "VIRTUAL_ENV")
INHERITED = {
    **{k: v for k, v in clean_environment().items() if not k.startswith(LEADING_ASTRAY)},
    "PIP_NO_INDEX": "1",
    "PIP_CONFIG_FILE": "/dev/null",
}


class Environment(NamedTuple):
    """A virtual environment of Python."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin/python"

    @property
    def site_packages(self) -> Path:
        return next(self.path.glob("lib/python3*/site-packages"))

    def variables(self, **more: str) -> dict[str, str]:
        """Those of a shell that has activated it."""
        path = f"{self.path}/bin:{INHERITED['PATH']}"
        return {**INHERITED, "VIRTUAL_ENV": str(self.path), "PATH": path, **more}

    def shell(self, script: str, *arguments, cwd=None, **variables: str) -> str:
        """What it printed; it must end well."""
        return shell(script, *arguments, cwd=cwd or self.path, env=self.variables(**variables))


def make_environment(path: Path) -> Environment:
    """What the running one has installed is there too, except ours, and stays out of pip's reach:
    pip takes away no package outside of its environment."""
    venv.create(path, symlinks=True, with_pip=False)
    others = path / "others"
    others.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(OURS):
            (others / entry.name).symlink_to(entry)
    environment = Environment(path)
    (environment.site_packages / "others.pth").write_text(f"{others}\n")
    return environment
