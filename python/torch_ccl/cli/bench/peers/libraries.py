"""The libraries of `torch-ccl bench --peers`: installs them and compiles the loop for each."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Launcher options. Each rank pins itself, so the launcher must not. Open MPI refuses to run as
#: root, and with more ranks than cores, without an option.
LAUNCHER_OPTIONS = {
    "mpich": ["-bind-to", "none"],
    "openmpi": ["--bind-to", "none", "--allow-run-as-root", "--oversubscribe"],
}
LIBRARIES = tuple(LAUNCHER_OPTIONS)
SOURCES = Path(__file__).parent
PACKAGE = SOURCES.parents[2]  # contains lib/ and include/
COMPILER_OPTIONS = ["-std=c++20", "-O2"]


class PeerError(Exception):
    """One line that says what failed."""


@dataclass
class Library:
    """A library and its executable of the loop."""

    name: str
    executable: Path
    launcher: list[str] = field(default_factory=list)  # empty: every rank is started by us
    version: str = ""

    def commands(self, ranks: int) -> list[tuple[list[str], dict[str, str]]]:
        """The processes to start: command line and additional environment of each."""
        if self.launcher:
            return [([*self.launcher, "-n", str(ranks), str(self.executable)], {})]
        return [
            ([str(self.executable)], {"RANK": str(rank), "WORLD_SIZE": str(ranks)})
            for rank in range(ranks)
        ]


def error_line(text: str) -> str:
    """The most useful line of an error output: the loop's own, otherwise the last with letters."""
    lines = [line.strip() for line in text.splitlines() if any(c.isalpha() for c in line)]
    ours = [line for line in lines if line.startswith("rank ")]
    return (ours or lines[-1:] or ["no output"])[0]


def run_command(failure: str, command: Sequence[str | Path]) -> str:
    """The output; raises PeerError("<failure>: <error line>")."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PeerError(f"{failure}: {error_line(result.stderr)}")
    return result.stdout.strip()


def compile_loop(name: str, compiler: Sequence[str | Path], source: Path, directory: Path) -> Path:
    """`compiler` is the command and what follows the source: libraries come last."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-loop"
    command, *options = compiler
    arguments = [command, *COMPILER_OPTIONS, source, "-o", path, *options]
    run_command(f"{name}: cannot compile {source.name}", arguments)
    return path


def build_ours(directory: Path) -> Library:
    lib = PACKAGE / "lib"
    compiler = ["c++", f"-I{PACKAGE / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltccl"]
    return Library("ccl", compile_loop("ccl", compiler, SOURCES / "ccl.cc", directory))


def build_mpi(name: str, directory: Path) -> Library:
    """Installs the library into a virtual environment, unless it is there."""
    venv = directory / name
    python, wrapper, launcher = (venv / "bin" / p for p in ("python", "mpicxx", "mpiexec"))
    if not wrapper.exists() or not launcher.exists():
        run_command(
            f"{name}: cannot create {venv}",
            [sys.executable, "-m", "venv", "--clear", str(venv)],
        )
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_command(f"{name}: cannot install", [*pip, name])
    query = f"import importlib.metadata as m; print(m.version('{name}'))"
    version = run_command(f"{name}: not installed", [python, "-c", query])
    path = compile_loop(name, [wrapper], SOURCES / "mpi.cc", directory)
    return Library(name, path, [str(launcher), *LAUNCHER_OPTIONS[name]], version)
