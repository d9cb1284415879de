"""Collectives called on a ProcessGroupCCL itself have completed when they return.

    group = ProcessGroupCCL(store, rank, size)
    group.allreduce(x)  # x holds the sum

torch's options ask for an asynchronous operation by default, so a call without options says nothing
about it. A call with options means what it says: their `asyncOp` decides. torch.distributed always
passes options, from C++, and does not come through here.
"""

import functools

from torch._C import _distributed_c10d as c10d

# Not send and recv: a rank may send to itself, which completes only with the recv after it.
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


def _completing(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        work = method(self, *args, **kwargs)
        has_options = any(isinstance(x, _OPTIONS) for x in (*args, *kwargs.values()))
        if work is not None and not has_options:
            work.wait()
        return work

    return call


def complete_direct_calls(backend: type) -> None:
    for name in _COLLECTIVES:
        setattr(backend, name, _completing(getattr(backend, name)))
