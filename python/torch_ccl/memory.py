"""Tensors in shared memory, which collectives do not have to copy."""

from collections.abc import Sequence
from operator import index
from typing import cast

import torch

from torch_ccl import _C


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, requires_grad: bool = False
) -> torch.Tensor:
    """Return an uninitialised CPU tensor, as torch.empty() does, in memory that the ranks of this
    host share.

    Collectives on it and on its views copy less: an all_reduce of 16 MiB takes half the time if all
    ranks pass such tensors. It cannot be resized. A forked child shares it with its parent instead
    of getting a copy.
    """
    extents = size
    if len(size) == 1 and not hasattr(size[0], "__index__"):
        extents = tuple(size[0])
    shape = [index(cast(int, extent)) for extent in extents]
    return _C.empty(shape, dtype or torch.get_default_dtype()).requires_grad_(requires_grad)
