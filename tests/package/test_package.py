"""The installed C++ package, used by a project outside of this repository."""

import os
import re
import shutil
import subprocess

import pytest
from support.commands import BUILD_DIR, ROOT, run, shell

# The first test installs the library, so all run on one worker.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("package")]
SLOW = pytest.mark.slow


def build_with_defaults(prefix, build) -> None:
    shell(
        'cmake "$1" -DCMAKE_INSTALL_PREFIX="$2" && make -j"$(nproc)" install',
        ROOT,
        prefix,
        cwd=build,
        env={k: v for k, v in os.environ.items() if k != "CMAKE_GENERATOR"},
    )


def install_release(prefix, build) -> None:
    """Installs what `make library` has built."""
    shell('cmake --install "$1" --prefix "$2"', BUILD_DIR, prefix)


@pytest.fixture(
    scope="module", params=[install_release, pytest.param(build_with_defaults, marks=SLOW)]
)
def prefix(request, tmp_path_factory):
    """The library, installed to a path with a space."""
    prefix = tmp_path_factory.mktemp("install") / "a prefix"
    request.param(prefix, tmp_path_factory.mktemp("build"))
    return prefix


def test_installed_files(prefix):
    for path in (
        "lib/libtccl.so",
        "lib/cmake/tccl/tcclConfig.cmake",
        "include/tccl/tccl.h",
        "env/setvars.sh",
        "env/vars.sh",
    ):
        assert (prefix / path).is_file(), path
    libraries = [str(path.relative_to(prefix)) for path in prefix.rglob("*.so*")]
    assert libraries == ["lib/libtccl.so"], "the Python extension belongs to the wheel alone"


@pytest.mark.parametrize("script", ["setvars.sh", "vars.sh"])
@pytest.mark.parametrize("tail", ["", ":/earlier"])
def test_setvars_twice(prefix, script, tail):
    """The shell has `set -eu`; lists are unset or have entries. Each directory is added once."""
    before = {"LD_LIBRARY_PATH": tail[1:], "CMAKE_PREFIX_PATH": tail[1:]} if tail else {}
    output = shell(
        '. "$1/env/$2"; . "$1/env/$2"; env',
        prefix,
        script,
        env={"PATH": os.environ["PATH"], **before},
    )
    after = dict(line.split("=", 1) for line in output.splitlines())
    assert after["CCL_ROOT"] == str(prefix)
    assert after["PATH"] == f"{prefix}/bin:{os.environ['PATH']}"
    assert after["LD_LIBRARY_PATH"] == f"{prefix}/lib{tail}"
    assert after["CMAKE_PREFIX_PATH"] == f"{prefix}{tail}"


def test_setvars_in_plain_sh(prefix):
    script = '. ./env/setvars.sh; . "$CCL_ROOT/env/setvars.sh"; echo "$LD_LIBRARY_PATH"'
    result = run(["sh", "-euc", script], cwd=prefix, env={"PATH": os.environ["PATH"]})
    assert (result.returncode, result.output.strip()) == (0, f"{prefix}/lib")


def test_exports_only_our_symbols(prefix):
    table = shell('nm -DC --defined-only "$1/lib/libtccl.so"', prefix)
    symbols = [line.split(maxsplit=2)[2] for line in table.splitlines()]
    ours = re.compile("((typeinfo|typeinfo name|vtable) for )?tccl::|tccl_")
    assert symbols
    assert [name for name in symbols if not ours.match(name)] == []


def test_needs_no_torch(prefix):
    needed = [
        line
        for line in shell('readelf -d "$1/lib/libtccl.so"', prefix).splitlines()
        if "NEEDED" in line
    ]
    assert needed
    assert not [line for line in needed if "torch" in line or "python" in line]


def test_example_outside_the_tree(prefix, tmp_path):
    source = shutil.copytree(ROOT / "examples/cpp", tmp_path / "example", dirs_exist_ok=True)
    shell('. "$1/env/setvars.sh"; cmake -B build; cmake --build build', prefix, cwd=source)

    ranks = [
        subprocess.Popen(
            [source / "build/allreduce", str(rank), "2", tmp_path / "store"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert outputs == [f"rank {rank} of 2: sum = 3\n" for rank in range(2)]
    assert [rank.returncode for rank in ranks] == [0, 0]
