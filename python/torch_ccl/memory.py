"""Tensors that collectives need not copy."""

from operator import index

import torch

from torch_ccl import _C


def empty(
    *size: int, dtype: torch.dtype | None = None, requires_grad: bool = False
) -> torch.Tensor:
    """Return a CPU tensor as torch.empty() does, in memory that the ranks of this host share.

    Collectives on it and on its views copy less: an all_reduce of 16 MiB takes half the time if all
    ranks pass such tensors. It cannot be resized. A forked child shares it with its parent instead
    of getting a copy.
    """
    if len(size) == 1 and not hasattr(size[0], "__index__"):
        size = tuple(size[0])
    made = _C.empty([index(extent) for extent in size], dtype or torch.get_default_dtype())
    return made.requires_grad_(requires_grad)
