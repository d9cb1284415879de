"""Collectives called directly on a ProcessGroupCCL block until they have completed.

    group = ProcessGroupCCL(store, rank, size)
    group.allreduce(x)  # x holds the sum

torch.distributed calls the methods of the C++ class, not these. Options make no difference: their
default is `asyncOp = True`, so they do not say what the caller wants. Intel's backend blocks, too.
"""

import functools
from collections.abc import Callable
from typing import Any

# Not send and recv: a rank may send to itself, which completes only with the recv that follows.
_COLLECTIVES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "allgather",
    "allgather_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
)


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: object, *args: object, **kwargs: object) -> Any:
        work = method(self, *args, **kwargs)
        if work is not None:
            work.wait()
        return work

    return call


def make_methods_blocking(backend: type) -> None:
    for name in _COLLECTIVES:
        setattr(backend, name, _blocking(getattr(backend, name)))
