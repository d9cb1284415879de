"""Makes DeepSpeed use torch.distributed instead of its own extension for oneCCL.

On CPUs DeepSpeed takes this package for Intel's: it compiles an extension against oneCCL's C++ API
before it asks torch for the backend "ccl", and that fails without oneCCL. For extensions that do
not exist on a platform DeepSpeed has NotImplementedBuilder; this hook substitutes it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Installed, and in a checkout of DeepSpeed's sources.
_BUILDERS = ("deepspeed.ops.op_builder.cpu", "op_builder.cpu")


def _disable_extension(builders: Any) -> None:
    if hasattr(builders, "CCLCommBuilder") and hasattr(builders, "NotImplementedBuilder"):
        builders.CCLCommBuilder = builders.NotImplementedBuilder


class _Finder(MetaPathFinder):
    """Delegates to the other finders, and patches the module after it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _BUILDERS:
            return None
        others = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            _disable_extension(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def install() -> None:
    for name in _BUILDERS:
        if name in sys.modules:
            _disable_extension(sys.modules[name])
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
