"""The wheels and `setup.py install`, in an environment with torch but without torch_ccl."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from support.commands import ROOT, run, shell
from support.python_environments import Environment, make_environment

# The first test builds the wheels, so all run on one worker.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("wheels")]

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
TORCH = ".".join(importlib.metadata.version("torch").split(".")[:2])
EXTENSION = f"extensions/torch{TORCH}/_C{sysconfig.get_config_var('EXT_SUFFIX')}"
BOUND_S = 90


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """An empty environment; tests that install into it uninstall at the end."""
    return make_environment(tmp_path_factory.mktemp("empty") / "venv")


# ---- the wheels


def our_wheel(wheels: Path) -> Path:
    (path,) = wheels.glob("torch_ccl-*.whl")
    return path


def test_three_wheels(wheels):
    """All have one version, and are built by the backend of pyproject.toml, not by setup.py."""
    ours = our_wheel(wheels).name
    assert re.fullmatch(rf"torch_ccl-{VERSION}-py3-none-(many)?linux_\w+\.whl", ours)
    alias = f"oneccl_bind_pt-{VERSION}-py3-none-any.whl"
    extension = f"torch_ccl_ipex_compat-{VERSION}-py3-none-any.whl"
    assert sorted(path.name for path in wheels.iterdir()) == sorted([alias, extension, ours])

    with zipfile.ZipFile(wheels / ours) as wheel:
        names = wheel.namelist()
        assert b"scikit-build-core" in wheel.read(f"torch_ccl-{VERSION}.dist-info/WHEEL")
        cmake = wheel.read("torch_ccl/lib/cmake/tccl/tcclConfigVersion.cmake").decode()
        assert f'PACKAGE_VERSION "{VERSION}"' in cmake
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "torch_ccl",
        "torch_ccl_command",
        "oneccl_bindings_for_pytorch",
        f"torch_ccl-{VERSION}.dist-info",
    }
    licenses = f"torch_ccl-{VERSION}.dist-info/licenses"
    assert {f"{licenses}/LICENSE", f"{licenses}/licenses/libsodium.txt"} <= set(names)
    assert {"torch_ccl/py.typed", "torch_ccl/_C.pyi"} <= set(names)
    sources = "torch_ccl/extension_sources"
    assert {f"{sources}/module.cc", f"{sources}/work.h", f"{sources}/base/clock.h"} <= set(names)
    libraries = [name for name in names if re.search(r"\.so(\.|$)", name)]
    assert sorted(libraries) == [f"torch_ccl/{EXTENSION}", "torch_ccl/lib/libtccl.so"]

    with zipfile.ZipFile(wheels / alias) as wheel:
        metadata = wheel.read(f"oneccl_bind_pt-{VERSION}.dist-info/METADATA").decode()
        assert all(".dist-info/" in name for name in wheel.namelist())
    assert f"Requires-Dist: torch-ccl=={VERSION}" in metadata.splitlines()


def test_needs_only_torch_and_the_system(installed):
    """It links no libfabric, which is loaded only for several hosts, no MPI, fmt or libcrypto."""
    package = installed.site_packages / "torch_ccl"
    table = installed.shell('readelf -d "$@"', package / EXTENSION, package / "lib/libtccl.so")
    needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", table))
    torch = {"libtorch_cpu", "libtorch_python", "libc10"}
    system = {"libc", "libm", "libpthread", "libdl", "libstdc++", "libgcc_s"}
    loader = {name for name in needed if name.startswith("ld-linux")}
    assert "libtccl" in needed
    assert needed - torch - system - loader == {"libtccl"}


# ---- the tag: the wheel loads on every system that torch's own wheels support

TAG = f"manylinux_2_28_{platform.machine()}"
TORCH_LIBRARIES = ["libc10.so", "libtorch_cpu.so", "libtorch_python.so"]
only_x86_64 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="other processors need what the building system has"
)


def audit(wheel: Path) -> dict:
    auditwheel = Path(sys.executable).with_name("auditwheel")
    return json.loads(shell('"$1" show --json "$2"', auditwheel, wheel))


def is_covered(tag: str) -> bool:
    """Whether a system on which wheels with TAG run can run those with this tag."""
    found = re.fullmatch(rf"manylinux_2_(\d+)_{platform.machine()}", tag)
    return bool(found) and int(found[1]) <= 28


@only_x86_64
def test_tag(wheels):
    assert our_wheel(wheels).name.endswith(f"-py3-none-{TAG}.whl")
    with zipfile.ZipFile(our_wheel(wheels)) as wheel:
        information = wheel.read(f"torch_ccl-{VERSION}.dist-info/WHEEL").decode()
    assert re.findall(r"(?m)^Tag: (.*)$", information) == [f"py3-none-{TAG}"]


@only_x86_64
def test_audit_finds_torch_alone(wheels):
    """`auditwheel show` names linux_x86_64, as for every extension of torch: it cannot be told that
    torch's libraries are there. They are all that is in the way of the tag."""
    found = audit(our_wheel(wheels))
    assert is_covered(found["sym_tag"]), found["sym_tag"]
    assert found["policy_upgrades"][TAG] == {"libs_to_eliminate": TORCH_LIBRARIES}


@only_x86_64
def test_audit_names_the_tag_of_the_library(wheels, tmp_path):
    """The wheel without the extensions, which alone need torch."""
    path = our_wheel(wheels)
    extensions = "torch_ccl/extensions/"
    with zipfile.ZipFile(path) as wheel, zipfile.ZipFile(tmp_path / path.name, "w") as copy:
        for name in wheel.namelist():
            content = wheel.read(name)
            if name.endswith(".dist-info/RECORD"):
                content = re.sub(rf"(?m)^{extensions}.*\n", "", content.decode()).encode()
            if not name.startswith(extensions):
                copy.writestr(name, content)
    found = audit(tmp_path / path.name)["overall_tag"]
    assert is_covered(found), found


def test_the_tag_stays_if_auditwheel_finds_no_other(tmp_path):
    wheel = tmp_path / "torch_ccl-1.0-py3-none-linux_riscv64.whl"
    wheel.touch()
    auditwheel = tmp_path / "auditwheel"
    auditwheel.write_text("#!/bin/sh\necho repairing\necho too recent symbols >&2\nexit 2\n")
    auditwheel.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = shell('tools/tag_wheel.sh "$1"', wheel, cwd=ROOT, env=variables)
    assert printed == f"tag_wheel: {wheel.name} keeps its tag: too recent symbols\n"
    assert wheel.exists()


def test_tagging_changes_no_library(installed):
    """auditwheel must leave their names and their search paths alone."""
    package = installed.site_packages / "torch_ccl"
    table = installed.shell('readelf -d "$1"', package / EXTENSION)
    assert re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", table) == ["$ORIGIN/../../lib"]
    assert "[libtccl.so]" in table
    assert "[libtccl.so]" in installed.shell('readelf -d "$1"', package / "lib/libtccl.so")


def test_the_library_needs_glibc_and_libstdcxx_alone(installed):
    table = installed.shell('ldd "$1"', installed.site_packages / "torch_ccl/lib/libtccl.so")
    found = set(re.findall(r"(?m)^\s*(?:/\S*/)?([\w+-]+)\.so", table))
    compiler, glibc = {"libstdc++", "libgcc_s"}, {"libc", "libm", "libpthread", "libdl"}
    of_kernel = {"linux-vdso"}
    loader = {name for name in found if name.startswith("ld-linux")}
    assert found - glibc - loader - of_kernel == compiler, table


# ---- the installed package

ADD_UP = """
import sys
from pathlib import Path

import oneccl_bindings_for_pytorch as torch_ccl
import torch
import torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("ccl", init_method=f"file://{store}", rank=rank, world_size=2)
x = torch.ones(1000)
dist.all_reduce(x)
dist.destroy_process_group()
assert (x == 2).all(), x
for module in (torch_ccl, sys.modules["torch_ccl"], torch_ccl.ProcessGroupCCL):
    file = getattr(module, "__file__", None) or sys.modules[module.__module__].__file__
    assert Path(file).is_relative_to(sys.prefix), file
sys.stdout.write(f"{torch_ccl.__version__}\\n")
"""


def test_two_ranks(installed, tmp_path):
    ranks = [
        subprocess.Popen(
            [installed.python, "-c", ADD_UP, str(rank), tmp_path / "store"],
            env=installed.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=BOUND_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert outputs == [f"{VERSION}\n"] * 2


def where_is_ours(environment: Environment) -> str:
    return json.loads(environment.shell("torch-ccl info --json"))["versions"]["installed in"]


def test_command(installed):
    assert where_is_ours(installed) == str(installed.site_packages / "torch_ccl")


SOURCE = (
    'source $(python -c "import oneccl_bindings_for_pytorch as torch_ccl;print(torch_ccl.cwd)")'
    "/env/setvars.sh"
)


@pytest.mark.slow
def test_cpp_program_against_the_wheel(installed, tmp_path):
    source = shutil.copytree(ROOT / "examples/cpp", tmp_path / "example")
    build = "cmake -B build; cmake --build build; ldd build/allreduce; echo root: $CCL_ROOT"
    printed = installed.shell(f"{SOURCE}; {build}", cwd=source)
    package = installed.site_packages / "torch_ccl"
    assert f"root: {package}" in printed.splitlines(), printed
    assert f"libtccl.so => {package}/lib/libtccl.so" in printed, printed


# ---- foreign libraries and versions

FOREIGN = """
#include <unistd.h>
__attribute__((constructor)) static void loaded() { (void)!write(2, "foreign\\n", 8); }
extern "C" int ccl_init() { return 1; }
"""
SAY_MAPPED = """
import torch, torch_ccl
import torch.distributed as dist

dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
from pathlib import Path
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
ours = {path for path in mapped if "ccl" in Path(path).name or "torch_ccl" in path}
print(*sorted(ours), sep="\\n")
"""


def test_foreign_libraries_are_not_loaded(installed, tmp_path):
    """LD_LIBRARY_PATH contains Intel's library and another version of ours."""
    (tmp_path / "foreign.cc").write_text(FOREIGN)
    build = "g++ -shared -fPIC -o libccl.so.1 foreign.cc; cp libccl.so.1 libtccl.so"
    installed.shell(build, cwd=tmp_path)
    by_path = {"LD_LIBRARY_PATH": str(tmp_path)}
    load = "import ctypes; ctypes.CDLL('libccl.so.1'); ctypes.CDLL('libtccl.so')"
    assert installed.shell('python -c "$1"', load, **by_path) == "foreign\n" * 2

    package = installed.site_packages / "torch_ccl"
    printed = installed.shell('python -c "$1"', SAY_MAPPED, **by_path).splitlines()
    assert printed == [str(package / EXTENSION), str(package / "lib/libtccl.so")]


REFUSED = """
import torch  # runs the hook of our package
import torch.distributed as dist

assert torch.__version__ == "2.99.0" and "ccl" in dist.Backend.backend_list
try:
    import oneccl_bindings_for_pytorch
except ImportError as error:
    print(error)
assert "torch_ccl" not in open("/proc/self/maps").read()
"""


def test_other_torch_without_a_compiler(installed, other_torch, tmp_path):
    """The error comes before any library of ours is loaded; torch itself still works."""
    variables = {
        "PYTHONPATH": str(other_torch),
        "CXX": "no-compiler",
        "CCL_CACHE_DIR": str(tmp_path),
    }
    printed = installed.shell('python -c "$1"', REFUSED, **variables)
    python = ".".join(map(str, sys.version_info[:2]))
    assert printed == (
        f"torch-ccl has no extension for torch 2.99.0 and Python {python}, and "
        "no C++ compiler is installed (no-compiler): install g++\n"
    )


# ---- other ways to install


@pytest.mark.slow
@pytest.mark.parametrize(
    "install",
    [
        "python setup.py install",
        "python -m pip install --no-build-isolation .",
        'python -m pip install "$1"/*.whl',
    ],
)
def test_install_and_uninstall(empty, wheels, install):
    """It is installed and runs; after uninstalling no file is left."""
    before = set(empty.site_packages.iterdir())
    empty.shell(install, wheels, cwd=ROOT)
    try:
        assert where_is_ours(empty) == str(empty.site_packages / "torch_ccl")
    finally:
        empty.shell("python -m pip uninstall --yes torch-ccl oneccl_bind_pt torch-ccl-ipex-compat")
    assert set(empty.site_packages.iterdir()) == before
    assert not (empty.path / "bin/torch-ccl").exists()


@pytest.mark.slow
def test_setup_py_install_prefix(empty, tmp_path):
    command = 'python setup.py bdist_wheel install --prefix "$1" -d "$1/dist"'
    empty.shell(command, tmp_path, cwd=ROOT)
    assert len(list(tmp_path.glob("dist/torch_ccl-*.whl"))) == 1
    assert len(list(tmp_path.glob("lib/python3*/site-packages/torch_ccl/extensions/*/_C*.so"))) == 1
    assert not list(empty.site_packages.glob("torch_ccl*"))


@pytest.mark.parametrize(
    ("words", "status", "answer"),
    [
        ("--help", 0, "install      build the package"),
        ("install --user", 1, "Can not perform a '--user' install"),  # pip's message
        ("sdist", 2, "otherwise use pip or make: docs/installing.md"),
        ("install --record files", 2, "otherwise use pip or make: docs/installing.md"),
        ("install torch", 2, "otherwise use pip or make: docs/installing.md"),
    ],
)
def test_setup_py_messages(empty, words, status, answer):
    command = [empty.python, ROOT / "setup.py", *words.split()]
    result = run(command, cwd=empty.path, env=empty.variables())
    assert (result.returncode, answer in result.output) == (status, True), result.output
    if status == 2:
        assert len(result.output.splitlines()) == 1


def test_setup_py_names_missing_packages(tmp_path):
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    bare = Environment(tmp_path / "venv")
    result = run([bare.python, ROOT / "setup.py", "install"], env=bare.variables())
    assert result.returncode == 1 and len(result.output.splitlines()) == 1, result.output
    assert "has no pip, no torch, no scikit-build-core" in result.output
