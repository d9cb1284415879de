"""The module that scripts import `single_card` from."""

import importlib

from intel_extension_for_pytorch.identity import optimize
from intel_extension_for_pytorch.left_out import left_out

__all__ = ["optimize", "single_card"]


def __getattr__(name: str) -> object:
    if name == "single_card":  # not before somebody asks: it loads all of torch_ccl
        return importlib.import_module(f"{__name__}.{name}")
    raise left_out(__name__, name)
