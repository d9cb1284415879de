"""Collectives called directly on a ProcessGroupCCL block until they have completed.

    group = ProcessGroupCCL(store, rank, size)
    group.allreduce(x)  # x holds the sum

The default of torch's options is `asyncOp = True`, so a call without options does not say whether
it is asynchronous. In a call with options, their `asyncOp` decides. torch.distributed always passes
options, from C++, and does not use these methods.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d as c10d

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

_OPTIONS = (
    c10d.AllgatherOptions,
    c10d.AllreduceCoalescedOptions,
    c10d.AllreduceOptions,
    c10d.AllToAllOptions,
    c10d.BarrierOptions,
    c10d.BroadcastOptions,
    c10d.GatherOptions,
    c10d.ReduceOptions,
    c10d.ReduceScatterOptions,
    c10d.ScatterOptions,
)


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: object, *args: object, **kwargs: object) -> Any:
        work = method(self, *args, **kwargs)
        has_options = any(isinstance(x, _OPTIONS) for x in (*args, *kwargs.values()))
        if work is not None and not has_options:
            work.wait()
        return work

    return call


def make_methods_blocking(backend: type) -> None:
    for name in _COLLECTIVES:
        setattr(backend, name, _blocking(getattr(backend, name)))
