"""DeepSpeed must not build its oneCCL extension, however it looks for it.

These tests use a fake DeepSpeed package; tests/applications uses the real one.
"""

import importlib.util
from pathlib import Path

import pytest
from support.ranks import run_script

# Imports the hook alone, without torch.
ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import deepspeed_hook
"""
BUILDERS = "class CCLCommBuilder: pass\nclass NotImplementedBuilder: pass\n"
IS_LEFT_OUT = "assert cpu.CCLCommBuilder is cpu.NotImplementedBuilder\n"


def make_package(directory: Path, name: str, builders: str = BUILDERS) -> None:
    *parents, module = name.split(".")
    for parent in parents:
        directory /= parent
        directory.mkdir()
        (directory / "__init__.py").write_text("")
    (directory / f"{module}.py").write_text(builders)


def run(script: str, packages: Path, before: str = ALONE) -> None:
    ours = Path(importlib.util.find_spec("oneccl_bindings_for_pytorch").origin).parent
    run_script(before + script, str(ours), PYTHONPATH=str(packages))


@pytest.fixture(params=["deepspeed.ops.op_builder.cpu", "op_builder.cpu"])
def builders(request, tmp_path) -> str:
    """The module of an installed DeepSpeed, and of a source checkout."""
    make_package(tmp_path, request.param)
    return request.param


def test_with_the_package(tmp_path):
    make_package(tmp_path, "deepspeed.ops.op_builder.cpu")
    script = "from deepspeed.ops.op_builder import cpu\n" + IS_LEFT_OUT
    run(script, tmp_path, before="import oneccl_bindings_for_pytorch\n")


def test_imported_later(builders, tmp_path):
    """find_spec() does not change the result."""
    script = f"""
import importlib, importlib.util
deepspeed_hook.install()
deepspeed_hook.install()
for _ in range(2):
    assert importlib.util.find_spec({builders!r}).origin
cpu = importlib.import_module({builders!r})
{IS_LEFT_OUT}
cpu = importlib.reload(cpu)
{IS_LEFT_OUT}
"""
    run(script, tmp_path)


def test_imported_before(builders, tmp_path):
    script = f"""
import importlib
cpu = importlib.import_module({builders!r})
deepspeed_hook.install()
{IS_LEFT_OUT}
"""
    run(script, tmp_path)


def test_module_that_is_not_there(tmp_path):
    """A DeepSpeed without the module, and no DeepSpeed."""
    make_package(tmp_path, "deepspeed.ops.op_builder.cuda")
    script = """
import importlib, importlib.util
deepspeed_hook.install()
assert importlib.util.find_spec("deepspeed.ops.op_builder.cpu") is None
for name in ("deepspeed.ops.op_builder.cpu", "op_builder.cpu"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name)
"""
    run(script, tmp_path)


def test_builders_of_others(tmp_path):
    """A foreign package of the same name is not changed."""
    make_package(tmp_path, "op_builder.cpu", "CCLCommBuilder = 'theirs'\n")
    script = """
deepspeed_hook.install()
from op_builder import cpu
assert cpu.CCLCommBuilder == "theirs" and not hasattr(cpu, "NotImplementedBuilder")
"""
    run(script, tmp_path)
