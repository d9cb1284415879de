"""Compiles the extension torch_ccl._C for a torch that the wheel has no extension for.

The result is kept in a directory of the user's cache whose name contains the versions of torch,
Python and torch-ccl and a hash of the sources. Of several processes that start together one
compiles, and the others wait for it: a lock saves their work. A compiled file is renamed into its
place, so a file there is complete also if locks do not work, as on some network file systems.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import torch

from torch_ccl import installed_files

COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++20", "-O2", "-fPIC", "-shared", "-w", "-DNDEBUG"),
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden", "-DTORCH_EXTENSION_NAME=_C"),
)


def load_or_compile(load: Callable[[Path], ModuleType]) -> ModuleType:
    """Load the extension from the cache; compile it first if it is missing or does not load."""
    for path in _compiled_earlier():
        with contextlib.suppress(ImportError):  # from another system with the same home directory
            return load(path)
    path = path_for_compiling()
    log = _log_of(path)
    before, log_before = _version(path), _version(log)
    with _lock(path.parent.with_name(f"{path.parent.name}.lock")):
        # Another process may have compiled it meanwhile, or failed to.
        if _version(log) != log_before:
            raise _compilation_failed(log)
        if _version(path) == before:
            compile_to(path)
    return load(path)


def path_for_compiling() -> Path:
    return _writable_directory() / _relative_path()


# ---- the cache


def _relative_path() -> Path:
    return Path(_key()) / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"


def _compiled_earlier() -> Iterator[Path]:
    """Also in directories that only root can write, as in the image of a container."""
    for directory in _candidates():
        path = directory / _relative_path()
        with contextlib.suppress(OSError):
            _check_owner(path.parent)
            if path.exists():
                yield path


def _writable_directory() -> Path:
    """The first directory that this user may write to. Raises ImportError if there is none."""
    problems = []
    for directory in _candidates():
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(directory)
            tempfile.TemporaryFile(dir=directory).close()
            return directory
        except OSError as problem:
            problems.append(str(problem))
    advice = f"set CCL_CACHE_DIR to one ({'; '.join(problems)})"
    raise _no_extension(f"no directory for a compiled one can be written: {advice}")


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("CCL_CACHE_DIR"):
        yield Path(named)
        return
    if cache := os.environ.get("XDG_CACHE_HOME"):
        yield Path(cache) / "torch-ccl"
    with contextlib.suppress(RuntimeError):  # no home directory
        yield Path.home() / ".cache/torch-ccl"
    yield _temporary_directory() / f"torch-ccl-{os.getuid()}"


def _temporary_directory() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # none can be written: writing to this one says why
        return Path("/tmp")


def _check_owner(directory: Path) -> None:
    """Its files are executed, so no other user but root may write to it."""
    status = directory.stat()
    if status.st_uid not in (0, os.getuid()):
        raise PermissionError(errno.EPERM, "belongs to another user", str(directory))
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "other users may write to it", str(directory))


def _key() -> str:
    version = importlib.metadata.version("torch-ccl")
    python = sysconfig.get_config_var("SOABI")
    return f"torch{torch.__version__}-{python}-{version}-{_digest()}"


@functools.cache
def _digest() -> str:
    hasher = hashlib.sha256(repr(FLAGS).encode())
    for path in (*_files("*.cc"), *_files("**/*.h"), *_files("**/*.h", "include")):
        hasher.update(path.name.encode() + path.read_bytes())
    return hasher.hexdigest()[:12]


def _version(path: Path) -> tuple[int, int] | None:
    """Differs after the file has been replaced or written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as problem:  # a file system without locks
            if problem.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        yield


# ---- the compiler


def compile_to(path: Path) -> None:
    """Raises ImportError with advice if it cannot be compiled."""
    compiler = _compiler()
    print(
        f"torch-ccl: compiling the extension for torch {torch.__version__} "
        f"(once, about a minute) into {path.parent}",
        file=sys.stderr,
        flush=True,
    )
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        unity, result = Path(directory) / "unity.cc", Path(directory) / path.name
        unity.write_text("".join(f'#include "{source}"\n' for source in _files("*.cc")))
        command = [*compiler, *FLAGS, *_options(), str(unity), "-o", str(result), *_libraries()]
        environment = {**os.environ, "TMPDIR": directory}  # the compiler writes files of 100 MB
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace"
        )
        if finished.returncode != 0:
            log = _log_of(path)
            log.write_text(f"{shlex.join(command)}\n{finished.stdout}{finished.stderr}")
            raise _compilation_failed(log)
        result.replace(path)


def _log_of(path: Path) -> Path:
    return path.parent / "compiler.log"


def _compilation_failed(log: Path) -> ImportError:
    command, *output = log.read_text().splitlines()
    compiler = shlex.split(command)[0]
    reason = next((line for line in output if "error:" in line), output[-1] if output else "")
    return _no_extension(f"{compiler} cannot compile one: {reason} ({log})")


def _compiler() -> list[str]:
    """$CXX, which may have options, or the first of COMPILERS that is installed."""
    names = [named] if (named := os.environ.get("CXX")) else COMPILERS
    for name in names:
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            break
    else:
        raise _no_extension(f"no C++ compiler is installed ({', '.join(names)}): install g++")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise _no_extension("Python.h is missing: install the development files of Python")
    return words


def _files(pattern: str, directory_name: str = "extension_sources") -> list[Path]:
    directory = installed_files.find(directory_name)
    if directory is None:
        raise _no_extension("the package has no sources for one")
    return sorted(directory.glob(pattern))


def _options() -> list[str]:
    directory, headers = (installed_files.find(name) for name in ("extension_sources", "include"))
    torch_headers = Path(torch.__file__).parent / "include"
    more_headers = torch_headers / "torch/csrc/api/include"  # torch/version.h
    system = (torch_headers, more_headers, sysconfig.get_path("include"))
    own = [f"-I{path}" for path in (directory, headers)]
    return [*own, *(word for path in system for word in ("-isystem", str(path))), *_pybind11_id()]


def _pybind11_id() -> list[str]:
    """Up to 2.8 types are shared only if these macros have the values of torch's own build."""
    values = {
        name: getattr(torch._C, f"_PYBIND11_{name}", None)
        for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")
    }
    return [f'-DPYBIND11_{name}="{value}"' for name, value in values.items() if value]


def _libraries() -> list[str]:
    own = installed_files.find("lib/libtccl.so")
    directory = Path(torch.__file__).parent / "lib"
    return [str(own), f"-L{directory}", "-ltorch_cpu", "-lc10", "-ltorch_python"]


def _no_extension(reason: str) -> ImportError:
    python = ".".join(map(str, sys.version_info[:2]))
    versions = f"torch {torch.__version__} and Python {python}"
    return ImportError(f"torch-ccl has no extension for {versions}, and {reason}")
