"""Which extension is loaded, and how one is compiled on first use.

Most tests use a stand-in compiler: a script that counts its calls and writes a file.
"""

import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
from support.ranks import run_script
from torch_ccl import extension, extension_build, installed_files

RELEASE = torch.__version__.split("+")[0]
COMPILER = """#!/bin/sh
{count}
sleep {delay_s}
while [ -e {held} ]; do sleep 0.05; done
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""


class Compiler:
    """Writes "compiled" in place of an extension."""

    def __init__(self, directory: Path, monkeypatch):
        self._calls = directory / "calls"
        self._script = directory / "compiler"
        self.held = directory / "held"  # while this file exists, the compiler does not end
        self.set_delay(0)
        monkeypatch.setenv("CXX", str(self._script))

    def set_delay(self, delay_s: float) -> None:
        self.set_script(COMPILER.format(count=self.count, held=self.held, delay_s=delay_s))

    def set_script(self, text: str) -> None:
        self._script.write_text(text)
        self._script.chmod(0o755)

    @property
    def count(self) -> str:
        """The line of a script that counts a call."""
        return f"echo called >> {self._calls}"

    @property
    def calls(self) -> int:
        return len(self._calls.read_text().splitlines()) if self._calls.exists() else 0


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> Compiler:
    monkeypatch.setenv("CCL_CACHE_DIR", str(tmp_path / "cache"))
    return Compiler(tmp_path, monkeypatch)


def read(path: Path) -> str:
    """In place of importing an extension."""
    return path.read_text()


# ---- which one


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (torch.__version__, True),
        (RELEASE, True),
        (f"{RELEASE}+cu130", True),
        (f"{RELEASE}a0+git1234567", False),
        (f"{RELEASE}.dev20260101", False),
        ("2.99.0", False),
    ],
)
def test_prebuilt(version, found, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    assert (extension.prebuilt() is not None) == found


@pytest.mark.parametrize("version", ["2.8.0", "2.15.0+cu130", "2.99.0a0"])
def test_torch_in_range(version):
    extension.check_torch_version(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.7.1+cpu", "3.0.0", "unknown"])
def test_torch_out_of_range(version):
    with pytest.raises(ImportError, match=re.escape(f"but torch {version} is installed")):
        extension.check_torch_version(version)


# ---- compiled on first use


def test_compiled_once(compiler, capfd):
    assert [extension_build.load_or_compile(read) for _ in range(3)] == ["compiled\n"] * 3
    assert compiler.calls == 1
    printed = capfd.readouterr().err.splitlines()
    assert len(printed) == 1 and f"for torch {torch.__version__}" in printed[0], printed


def test_each_torch_has_its_own(compiler, monkeypatch):
    extension_build.load_or_compile(read)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    extension_build.load_or_compile(read)
    assert compiler.calls == 2


def load_and_report(results) -> None:
    results.put(extension_build.load_or_compile(read))


def run_together(function, count: int = 4) -> list[str]:
    """What each of the processes reports."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [context.Process(target=function, args=(results,)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * count
    return [results.get() for _ in processes]


def test_processes_that_start_together_compile_once(compiler):
    compiler.set_delay(1)
    assert run_together(load_and_report) == ["compiled\n"] * 4
    assert compiler.calls == 1


def fail_and_report(results) -> None:
    try:
        extension_build.load_or_compile(read)
    except ImportError as error:
        results.put(str(error))


def test_processes_that_start_together_fail_once(compiler):
    compiler.set_script(f"#!/bin/sh\n{compiler.count}; sleep 1; echo 'a: error: b' >&2; exit 1\n")
    errors = run_together(fail_and_report)
    assert len(set(errors)) == 1 and "cannot compile one: a: error: b" in errors[0], errors
    assert compiler.calls == 1


def test_a_killed_process_leaves_no_lock(compiler):
    compiler.held.touch()
    first = multiprocessing.get_context("fork").Process(
        target=extension_build.load_or_compile, args=(read,)
    )
    first.start()
    end = time.monotonic() + 30
    while not compiler.calls and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.join(30)
    compiler.held.unlink()
    assert extension_build.load_or_compile(read) == "compiled\n"
    assert compiler.calls == 2


def test_a_file_that_does_not_load_is_compiled_again(compiler):
    extension_build.load_or_compile(read)
    extension_build.path_for_compiling().write_text("of another system\n")

    def read_compiled(path: Path) -> str:
        if read(path) != "compiled\n":
            raise ImportError("invalid ELF header")
        return read(path)

    assert extension_build.load_or_compile(read_compiled) == "compiled\n"
    assert compiler.calls == 2


# ---- where


def test_unusable_directories_are_passed_over(compiler, tmp_path, monkeypatch):
    """XDG_CACHE_HOME is writable by others, HOME is no directory."""
    monkeypatch.delenv("CCL_CACHE_DIR")
    shared = tmp_path / "shared/torch-ccl"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared.parent))
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    extension_build.load_or_compile(read)
    assert extension_build.path_for_compiling().is_relative_to(
        tmp_path / f"torch-ccl-{os.getuid()}"
    )


def test_a_later_directory_has_it(compiler, tmp_path, monkeypatch):
    """An earlier directory is empty: it would be compiled into that one."""
    extension_build.load_or_compile(read)
    cache = tmp_path / "cache"
    monkeypatch.delenv("CCL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/.cache").mkdir(parents=True)
    cache.rename(tmp_path / "home/.cache/torch-ccl")
    assert extension_build.load_or_compile(read) == "compiled\n"
    assert compiler.calls == 1


def test_a_changed_header_of_the_library_is_compiled_again(compiler, tmp_path, monkeypatch):
    extension_build.load_or_compile(read)
    find = installed_files.find
    headers = shutil.copytree(find("include"), tmp_path / "include")
    (headers / "tccl/store.h").write_text("// changed\n")
    changed = {"include": headers}
    monkeypatch.setattr(installed_files, "find", lambda name: changed.get(name) or find(name))
    extension_build._digest.cache_clear()
    extension_build.load_or_compile(read)
    extension_build._digest.cache_clear()
    assert compiler.calls == 2


def test_no_directory(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CCL_CACHE_DIR", str(tmp_path / "file/cache"))
    with pytest.raises(ImportError, match=r"no directory .*: set CCL_CACHE_DIR .*file/cache"):
        extension_build.load_or_compile(read)
    assert compiler.calls == 0


# ---- errors

PYTHON = ".".join(map(str, sys.version_info[:2]))


def test_no_compiler(compiler, monkeypatch):
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ImportError) as caught:
        extension_build.load_or_compile(read)
    assert str(caught.value) == (
        f"torch-ccl has no extension for torch {torch.__version__} and Python {PYTHON}, and "
        "no C++ compiler is installed (c++, g++, clang++): install g++"
    )


def test_the_compilers_error_is_shown(compiler):
    compiler.set_script("#!/bin/sh\necho 'work.cc:7: error: the reason' >&2\nexit 1\n")
    with pytest.raises(ImportError, match=r"work\.cc:7: error: the reason \(.*compiler\.log\)"):
        extension_build.load_or_compile(read)
    log = extension_build.path_for_compiling().parent / "compiler.log"
    assert "-std=c++20" in log.read_text() and "the reason" in log.read_text()


# ---- a real one


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_compiler(tmp_path):
    script = """
import torch
torch.__version__ += ".dev1"  # no extension is built for it
import torch.distributed as dist
dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
from torch_ccl import _C
print(_C.__file__)
dist.destroy_process_group()
"""
    for _ in range(2):
        printed = run_script(script, bound_s=300, CCL_CACHE_DIR=str(tmp_path))
        assert Path(printed.strip()).is_relative_to(tmp_path)
    assert len(list(tmp_path.glob("*/_C*.so"))) == 1
