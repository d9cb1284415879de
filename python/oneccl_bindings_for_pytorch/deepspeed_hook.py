"""DeepSpeed goes through torch.distributed, as if it had no extension of its own for oneCCL.

On CPUs it takes this package for Intel's, and would compile an extension against oneCCL's C++
interface before it asks torch for the backend "ccl"; that fails without oneCCL. Where an extension
does not exist, DeepSpeed has a builder that says so: that is what it finds here.
"""

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType

# As it is installed, and in a checkout of its sources.
_BUILDERS = ("deepspeed.ops.op_builder.cpu", "op_builder.cpu")


def _leave_out_extension(builders: ModuleType) -> None:
    if hasattr(builders, "CCLCommBuilder") and hasattr(builders, "NotImplementedBuilder"):
        builders.CCLCommBuilder = builders.NotImplementedBuilder


class _Finder(MetaPathFinder):
    """Finds what the others find, and changes it when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in _BUILDERS:
            return None
        others = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            _leave_out_extension(module)

        spec.loader.exec_module = execute_and_change
        return spec


_finder = _Finder()


def install() -> None:
    for name in _BUILDERS:
        if name in sys.modules:
            _leave_out_extension(sys.modules[name])
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
