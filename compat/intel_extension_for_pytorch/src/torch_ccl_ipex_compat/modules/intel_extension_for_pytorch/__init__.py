"""A substitute for the retired package of this name; part of torch-ccl.

It has what scripts for distributed training import: `xpu.single_card`; `optimize`, which changes
nothing and warns; and `_C._has_xpu()`, by which programs detect an accelerator. Any other name
raises AttributeError.
"""

import importlib.metadata

import torch

from intel_extension_for_pytorch import _C as _C
from intel_extension_for_pytorch import xpu
from intel_extension_for_pytorch.no_op_optimize import optimize
from intel_extension_for_pytorch.unsupported import unsupported

__all__ = ["__version__", "optimize", "xpu"]
__version__ = importlib.metadata.version("torch-ccl")  # the wheel requires its own version of it


def __getattr__(name: str) -> object:
    raise unsupported(__name__, name)


if not hasattr(torch.xpu, "optimize"):
    torch.xpu.optimize = optimize  # where scripts look for it
