"""For programs that detect an accelerator by importing this package (DeepSpeed up to 0.18)."""

import torch

from intel_extension_for_pytorch.unsupported import unsupported


def _has_xpu() -> bool:
    return torch.xpu.is_available()


def __getattr__(name: str) -> object:
    raise unsupported(__name__, name)
