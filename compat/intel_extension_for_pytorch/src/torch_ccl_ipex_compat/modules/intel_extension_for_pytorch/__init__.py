"""A stand-in for the package of this name, which is retired; it is part of torch-ccl.

It has what scripts for distributed training import: `xpu.single_card`, and `optimize`, which
changes nothing and says so; and `_C._has_xpu()`, which programs ask to learn whether there is an
accelerator. All else is left out, and an AttributeError names it.
"""

import importlib.metadata

import torch

from intel_extension_for_pytorch import _C as _C
from intel_extension_for_pytorch import xpu
from intel_extension_for_pytorch.identity import optimize
from intel_extension_for_pytorch.left_out import left_out

__all__ = ["__version__", "optimize", "xpu"]
__version__ = importlib.metadata.version("torch-ccl")  # the wheel asks for its own version of it


def __getattr__(name: str) -> object:
    raise left_out(__name__, name)


if not hasattr(torch.xpu, "optimize"):
    torch.xpu.optimize = optimize  # where scripts look for it
