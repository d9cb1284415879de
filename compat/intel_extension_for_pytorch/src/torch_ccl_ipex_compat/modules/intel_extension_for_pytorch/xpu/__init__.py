"""The module from which scripts import `single_card`."""

import importlib

from intel_extension_for_pytorch.no_op_optimize import optimize
from intel_extension_for_pytorch.unsupported import unsupported

__all__ = ["optimize", "single_card"]


def __getattr__(name: str) -> object:
    if name == "single_card":  # on demand: it loads all of torch_ccl
        return importlib.import_module(f"{__name__}.{name}")
    raise unsupported(__name__, name)
