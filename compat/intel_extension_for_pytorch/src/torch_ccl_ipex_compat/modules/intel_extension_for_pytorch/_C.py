"""What programs ask that detect an accelerator by importing this package (DeepSpeed up to 0.18)."""

import torch

from intel_extension_for_pytorch.left_out import left_out


def _has_xpu() -> bool:
    return torch.xpu.is_available()


def __getattr__(name: str) -> object:
    raise left_out(__name__, name)
