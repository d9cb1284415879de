"""The compatibility wheel for intel_extension_for_pytorch: a real package takes precedence."""

import importlib.metadata
import sysconfig
import zipfile
from pathlib import Path

import pytest
from support.commands import ROOT
from support.python_environments import OURS, Environment, make_environment

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("ipex wheel")]

VERSION = importlib.metadata.version("torch-ccl")
REAL_VERSION = "2.8.0"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """The compatibility wheel, and a fake of the real package."""
    directory = tmp_path_factory.mktemp("wheels")
    real = directory / "real"
    package = real / "intel_extension_for_pytorch"
    (package / "xpu").mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = '{REAL_VERSION}'\n")
    (package / "xpu/__init__.py").write_text("")
    (package / "xpu/single_card.py").write_text("single_card_dist = 'the real one'\n")
    (real / "pyproject.toml").write_text(
        f"""
[build-system]
requires = ["scikit-build-core"]
build-backend = "scikit_build_core.build"
[project]
name = "intel_extension_for_pytorch"
version = "{REAL_VERSION}"
[tool.scikit-build]
wheel.cmake = false
wheel.packages = ["intel_extension_for_pytorch"]
"""
    )
    environment = make_environment(directory / "builder")
    build = 'python -m pip wheel --no-build-isolation --no-deps --wheel-dir "$1" "$2" "$3"'
    environment.shell(build, directory / "dist", ROOT / "compat/intel_extension_for_pytorch", real)
    return directory / "dist"


@pytest.fixture
def environment(tmp_path) -> Environment:
    """An environment with the torch-ccl under test, which the compatibility wheel requires."""
    made = make_environment(tmp_path / "venv")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name.startswith(OURS) and "ipex" not in entry.name:
            (made.path / "others" / entry.name).symlink_to(entry)
    return made


def install(environment: Environment, wheels: Path, name: str) -> None:
    environment.shell('python -m pip install --no-index --find-links "$1" "$2"', wheels, name)


def uninstall(environment: Environment, name: str) -> None:
    environment.shell('python -m pip uninstall --yes "$1"', name)


STAND_IN, REAL = "torch-ccl-ipex-compat", "intel_extension_for_pytorch"


def found_version(environment: Environment, **variables: str) -> str:
    program = "import intel_extension_for_pytorch as ipex; print(ipex.__version__)"
    return environment.shell('python -c "$1"', program, **variables).strip()


def files(environment: Environment) -> dict[str, bytes]:
    """The files of the real package, and pip's metadata of it."""
    return {
        str(path.relative_to(environment.site_packages)): path.read_bytes()
        for path in environment.site_packages.glob("intel_extension_for_pytorch*/**/*")
        if path.is_file() and path.suffix != ".pyc"
    }


# ---- without a real package


def test_contents(wheels):
    """No file has the path of a file of the real package."""
    (path,) = wheels.glob("torch_ccl_ipex_compat-*.whl")
    assert path.name == f"torch_ccl_ipex_compat-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        tops = {name.split("/")[0] for name in wheel.namelist()}
        information = f"torch_ccl_ipex_compat-{VERSION}.dist-info"
        metadata = wheel.read(f"{information}/METADATA").decode().splitlines()
    assert tops == {"torch_ccl_ipex_compat", "torch_ccl_ipex_compat.pth", information}
    assert f"Requires-Dist: torch-ccl=={VERSION}" in metadata


USE = """
import sys
assert not {"torch", "importlib.metadata", "pathlib"} & sys.modules.keys()  # it starts as fast

import warnings
import intel_extension_for_pytorch as ipex
import torch
assert "torch_ccl._C" not in sys.modules

from intel_extension_for_pytorch.xpu.single_card import single_card_dist
from torch_ccl import single_card
assert single_card_dist is single_card.single_card_dist
assert ipex.xpu.single_card.single_card_dist is single_card_dist

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.xpu.optimize(model=model, optimizer=optimizer, dtype=torch.bfloat16) == (
        model,
        optimizer,
    )
    assert ipex.optimize(model, dtype=torch.bfloat16, weights_prepack=False) is model
    assert ipex.xpu.optimize(model, level="O0") is model
assert model.weight.dtype == torch.float32
print(*(warning.message for warning in caught), sep="\\n")

assert ipex._C._has_xpu() is torch.xpu.is_available()

for module in (ipex, ipex.xpu, ipex._C):
    assert not hasattr(module, "quantization")
    try:
        module.quantization
    except AttributeError as error:
        print(error)
print(ipex.__version__)
"""


def test_what_is_there(environment, wheels):
    install(environment, wheels, STAND_IN)
    warning, *refusals, version = environment.shell('python -c "$1"', USE).splitlines()
    assert "changes nothing" in warning
    assert [line.partition(" is not supported")[0] for line in refusals] == [
        "intel_extension_for_pytorch.quantization",
        "intel_extension_for_pytorch.xpu.quantization",
        "intel_extension_for_pytorch._C.quantization",
    ]
    assert version == VERSION


def test_from_the_source_tree(environment):
    """Other tests use it from the source tree: the wheel is not installed."""
    source = ROOT / "compat/intel_extension_for_pytorch/src/torch_ccl_ipex_compat/modules"
    assert found_version(environment, PYTHONPATH=str(source)) == VERSION


def test_without_it(environment):
    with pytest.raises(AssertionError, match="No module named 'intel_extension_for_pytorch'"):
        found_version(environment)


# ---- with a real package


@pytest.mark.slow
@pytest.mark.parametrize("first", [STAND_IN, REAL])
def test_the_real_one_wins(environment, wheels, first):
    """The order of installation does not matter; each is uninstalled without the other."""
    second = REAL if first == STAND_IN else STAND_IN
    install(environment, wheels, REAL)
    alone = files(environment)
    uninstall(environment, REAL)
    assert alone and not files(environment)

    install(environment, wheels, first)
    install(environment, wheels, second)
    assert found_version(environment) == REAL_VERSION
    assert files(environment) == alone
    program = "from intel_extension_for_pytorch.xpu import single_card as s; print(s.__file__)"
    printed = environment.shell('python -c "$1"', program).strip()
    assert Path(printed).parent.parent == environment.site_packages / REAL

    uninstall(environment, STAND_IN)
    assert found_version(environment) == REAL_VERSION
    assert not list(environment.site_packages.glob("torch_ccl_ipex*"))
    install(environment, wheels, STAND_IN)
    uninstall(environment, REAL)
    assert found_version(environment) == VERSION


def test_the_real_one_wins_behind_all_others(environment, wheels, tmp_path):
    """It wins at the end of sys.path too, and if a finder that was added later finds it."""
    install(environment, wheels, STAND_IN)
    unpacked = tmp_path / "elsewhere"
    with zipfile.ZipFile(next(wheels.glob("intel_extension_for_pytorch-*.whl"))) as wheel:
        wheel.extractall(unpacked)
    late = environment.site_packages / "zzz.pth"
    late.write_text(f"{unpacked}\n")
    assert found_version(environment) == REAL_VERSION
    late.unlink()
    assert found_version(environment) == VERSION
    late.write_text("import late_finder\n")
    (environment.site_packages / "late_finder.py").write_text(
        f"""
import sys
from importlib.machinery import PathFinder

class Late:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(unpacked)!r}]) if path is None else None

sys.meta_path.append(Late)
"""
    )
    assert found_version(environment) == REAL_VERSION
