"""Gives a torch older than 2.13 the names that the tests use, which came with 2.13."""

import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

NAMES = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
FUNCTIONAL_NAMES = {
    "all_gather_single": "all_gather_tensor",
    "all_gather_single_autograd": "all_gather_tensor_autograd",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_autograd": "reduce_scatter_tensor_autograd",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


def add_missing(module, names: dict[str, str]) -> None:
    for new, old in names.items():
        if not hasattr(module, new):
            setattr(module, new, getattr(module, old))


add_missing(dist, NAMES)
add_missing(funcol, FUNCTIONAL_NAMES)
