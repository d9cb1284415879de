"""The wheels and `setup.py install`, in an environment with torch but without torch_ccl."""

import importlib.metadata
import json
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
from support.python_environments import INHERITED, Environment, make_environment

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


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The directory that `make wheel` fills."""
    dist = tmp_path_factory.mktemp("dist")
    shell('make wheel DIST="$1"', dist, cwd=ROOT, env=INHERITED)
    return dist


@pytest.fixture(scope="module")
def installed(wheels, tmp_path_factory):
    environment = make_environment(tmp_path_factory.mktemp("installed") / "venv")
    printed = environment.shell(
        'python -m pip install --no-index --find-links "$1" oneccl_bind_pt', wheels
    )
    assert f"oneccl_bind_pt-{VERSION}" in printed and f"torch-ccl-{VERSION}" in printed, printed
    return environment


# ---- the wheels


def test_three_wheels(wheels):
    """All have one version, and are built by the backend of pyproject.toml, not by setup.py."""
    platform = sysconfig.get_platform().replace("-", "_")
    ours = f"torch_ccl-{VERSION}-py3-none-{platform}.whl"
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
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "ccl" in line and ".so" in line}
print(*sorted(mapped), sep="\\n")
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


def pretend_other_torch(environment: Environment, path: Path) -> None:
    """Makes a directory with the installed torch under another version number."""
    (path / "torch").mkdir()
    for entry in (environment.path / "others/torch").resolve().iterdir():
        (path / "torch" / entry.name).symlink_to(entry)
    version = path / "torch/version.py"
    text, count = re.subn(r"(?m)^__version__ = .*", "__version__ = '2.99.0'", version.read_text())
    assert count == 1
    version.unlink()
    version.write_text(text)


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


def test_other_torch_without_a_compiler(installed, tmp_path):
    """The error comes before any library of ours is loaded; torch itself still works."""
    pretend_other_torch(installed, tmp_path)
    variables = {"PYTHONPATH": str(tmp_path), "CXX": "no-compiler", "CCL_CACHE_DIR": str(tmp_path)}
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
