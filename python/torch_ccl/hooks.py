"""Communication hooks for DistributedDataParallel: compressed gradients between hosts.

    from torch_ccl import hooks

    model = DistributedDataParallel(model)
    model.register_comm_hook(None, hooks.bf16_between_hosts)

Between hosts float32 gradients are sent as bfloat16, or as int8 in blocks of 128 with one scale per
block; they are summed in float32. Within a host nothing changes. Accuracy: docs/hosts.md. The
setting CCL_WIRE_DTYPE does the same for all float32 sums of a program.
"""

from typing import Any

import torch
import torch.distributed as dist

from torch_ccl._C import ProcessGroupCCL


def bf16_between_hosts(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket with half of the bytes; relative error up to 1/256 per number."""
    return _average(group, bucket, "bf16")


def int8_between_hosts(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket with a quarter of the bytes; error up to 1/254 of a block's maximum."""
    return _average(group, bucket, "int8")


def _average(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket, wire_dtype: str
) -> torch.futures.Future[torch.Tensor]:
    backend = _backend_of(group if group is not None else dist.group.WORLD)
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    options.asyncOp = True
    gradients = bucket.buffer()
    work: Any
    if gradients.is_sparse:
        work = backend.allreduce([gradients], options)
    else:
        work = backend.allreduce_compressed([gradients], options, wire_dtype)
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(
        lambda done: done.value()[0]
    )
    return averaged


def _backend_of(group: Any) -> ProcessGroupCCL:
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, ProcessGroupCCL):
        raise TypeError(
            f"torch_ccl.hooks need a group of backend ccl, not {type(backend).__name__}"
        )
    return backend
