"""The table of all collectives and messages of torch that tests compare with a reference."""

import torch

from support import torch_coalesced as coalesced
from support import torch_collectives as collectives
from support import torch_messages as messages
from support.torch_exchange import Case, Exchange, Operation

OPERATIONS = {
    "all_reduce": Operation(collectives.all_reduce, reduces=True, same_everywhere=True),
    "broadcast": Operation(collectives.broadcast, same_everywhere=True),
    "reduce": Operation(collectives.reduce, reduces=True),
    "all_gather": Operation(collectives.all_gather, same_everywhere=True),
    "all_gather uneven": Operation(collectives.all_gather_uneven, same_everywhere=True),
    "all_gather_single": Operation(collectives.all_gather_single, same_everywhere=True),
    "all_gather_single in place": Operation(
        collectives.all_gather_single_in_place, same_everywhere=True
    ),
    "gather": Operation(collectives.gather),
    "gather uneven": Operation(collectives.gather_uneven),
    "scatter": Operation(collectives.scatter),
    "scatter uneven": Operation(collectives.scatter_uneven),
    "reduce_scatter": Operation(collectives.reduce_scatter, reduces=True),
    "reduce_scatter uneven": Operation(collectives.reduce_scatter_uneven, reduces=True),
    "reduce_scatter_single": Operation(collectives.reduce_scatter_single, reduces=True),
    "reduce_scatter_single in place": Operation(
        collectives.reduce_scatter_single_in_place, reduces=True
    ),
    "all_to_all": Operation(collectives.all_to_all),
    "all_to_all uneven": Operation(collectives.all_to_all_uneven),
    "all_to_all_single": Operation(collectives.all_to_all_single),
    "all_to_all_single uneven": Operation(collectives.all_to_all_single_uneven),
    "send_recv": Operation(messages.send_recv),
    "recv_any_source": Operation(messages.recv_any_source),
    "batch_send_recv": Operation(messages.batch_send_recv, interfaces=("dist",)),
    "all_reduce coalesced": Operation(
        coalesced.all_reduce_coalesced, reduces=True, same_everywhere=True
    ),
    "all_gather coalesced": Operation(
        coalesced.all_gather_coalesced, same_everywhere=True, interfaces=("group", "backend")
    ),
    "all_gather_single coalesced": Operation(
        coalesced.all_gather_single_coalesced, same_everywhere=True, interfaces=("dist", "group")
    ),
    "reduce_scatter_single coalesced": Operation(
        coalesced.reduce_scatter_single_coalesced, reduces=True, interfaces=("dist", "group")
    ),
}


def make_exchange(case: Case, rank: int, group) -> Exchange:
    return Exchange(case, OPERATIONS[case.operation], rank, group)


def interfaces_of(operation: str, dtype: torch.dtype, reduction: str | None) -> list[str]:
    """Leaves out "dist" for products of complex numbers: torch.distributed refuses them."""
    interfaces = list(OPERATIONS[operation].interfaces)
    if dtype.is_complex and reduction == "PRODUCT" and "dist" in interfaces:
        interfaces.remove("dist")
    return interfaces
