"""Runs commands as on a fresh machine: by an ordinary user, with 1 MB of /dev/shm, without
libfabric and without a compiler. The caller must be root.

    machine = FreshMachine(environment, hidden=[*compilers(), *libfabric()])
    result = machine.run('torch-ccl doctor "$1"', "--json", HOME="/usr")

It is a mount namespace with overlays in memory: nothing changes outside of it. HOME and TMPDIR are
in memory too, unless variables name other directories.
"""

import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.commands import CommandResult, run, shell
from support.python_environments import Environment

USER = 65534  # nobody
COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")

MAKE_OVERLAYS = """
mount -t tmpfs tmpfs /mnt
for directory in {directories}; do
  layer=$(mktemp -d /mnt/XXXXXX)
  mkdir $layer/upper $layer/work
  chmod --reference "$directory" $layer/upper
  layers="lowerdir=$directory,upperdir=$layer/upper,workdir=$layer/work"
  mount -t overlay -o "$layers" overlay "$directory"
done
mount -t tmpfs -o size=1m,mode=1777 tmpfs /dev/shm
"""
BECOME_USER = f"""
install -d -o {USER} /mnt/home /mnt/tmp
exec setpriv --reuid={USER} --regid={USER} --clear-groups bash -euc "$@"
"""


@dataclass
class FreshMachine:
    """`hidden` are removed; the user can write to none of `read_only`."""

    environment: Environment
    hidden: Iterable[Path]
    read_only: Iterable[Path] = ()

    def run(self, script: str, *arguments, **variables: str) -> CommandResult:
        """Runs a bash script as that user, in the root directory."""
        command = ["unshare", "--mount", "bash", "-euc", self._preparation(), "bash"]
        own = {"HOME": "/mnt/home", "TMPDIR": "/mnt/tmp", **variables}
        return run(
            [*command, script, "bash", *arguments], env=self.environment.variables(**own), cwd="/"
        )

    def _preparation(self) -> str:
        hidden = list(self.hidden)
        closed = closed_directories(
            (self.environment.path, Path(sys.prefix), Path(sys.base_prefix))
        )
        changed = {*closed, *self.read_only, *(path.parent for path in hidden)}
        return "\n".join(
            (
                MAKE_OVERLAYS.format(directories=quoted(outermost(changed))),
                f"chmod a+rx /mnt {quoted(closed)}",
                f"chmod go-w /mnt {quoted(self.read_only)}",
                f"rm -f {quoted(hidden)}",
                BECOME_USER,
            )
        )


def libfabric() -> list[Path]:
    listed = (
        line.split()[-1] for line in shell("/sbin/ldconfig -p").splitlines() if "libfabric" in line
    )
    return [path.parent.resolve() / path.name for path in map(Path, listed)]


def compilers() -> list[Path]:
    path = Environment(Path("/nowhere")).variables()["PATH"]
    found = (Path(entry).resolve() / name for entry in path.split(":") for name in COMPILERS)
    return sorted({file for file in found if shutil.which(file)})


def closed_directories(paths: Iterable[Path]) -> list[Path]:
    """Those on the way to `paths` that only their owner can enter."""
    directories = {directory for path in paths for directory in (path, *path.resolve().parents)}
    return sorted(directory for directory in directories if not directory.stat().st_mode & 0o001)


def outermost(directories: Iterable[Path]) -> list[Path]:
    kept: list[Path] = []
    for directory in sorted(directories):
        if not any(directory.is_relative_to(other) for other in kept):
            kept.append(directory)
    return kept


def quoted(paths: Iterable[Path]) -> str:
    return shlex.join(map(str, paths))
