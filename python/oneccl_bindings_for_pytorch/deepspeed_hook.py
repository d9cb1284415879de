"""DeepSpeed goes through torch.distributed, as if it had no extension of its own for oneCCL.

On CPUs it takes this package for Intel's, and would compile an extension against oneCCL's C++
interface before it asks torch for the backend "ccl"; that fails without oneCCL. Where an extension
does not exist, DeepSpeed has a builder that says so: that is what it finds here.
"""

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType

_BUILDERS = "deepspeed.ops.op_builder.cpu"


def _leave_out_extension(builders: ModuleType) -> None:
    builders.CCLCommBuilder = builders.NotImplementedBuilder


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _BUILDERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            _leave_out_extension(module)

        spec.loader.exec_module = execute_and_change
        return spec


def install() -> None:
    if _BUILDERS in sys.modules:
        _leave_out_extension(sys.modules[_BUILDERS])
    else:
        sys.meta_path.insert(0, _Finder())
