"""Communication hooks for DistributedDataParallel: gradients with fewer bytes between hosts.

    from torch_ccl import hooks

    model = DistributedDataParallel(model)
    model.register_comm_hook(None, hooks.bf16_between_hosts)

Within a host nothing changes. Between hosts float32 gradients travel as bfloat16, or as int8 in
blocks of 128 with a scale of their own; they are added up in float32. How exact that is: see
docs/hosts.md. The setting CCL_WIRE_DTYPE does the same for all float32 sums of a program.
"""

import torch
import torch.distributed as dist

from torch_ccl._C import ProcessGroupCCL


def bf16_between_hosts(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket; half of the bytes, each number exact to one part in 256."""
    return _average(group, bucket, "bf16")


def int8_between_hosts(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket; a quarter of the bytes, exact to 1/254 of a block's largest number."""
    return _average(group, bucket, "int8")


def _average(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket, wire_dtype: str
) -> torch.futures.Future[torch.Tensor]:
    backend = _backend_of(group if group is not None else dist.group.WORLD)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    options.asyncOp = True
    gradients = bucket.buffer()
    if gradients.is_sparse:
        work = backend.allreduce([gradients], options)
    else:
        work = backend.allreduce_packed([gradients], options, wire_dtype)
    return work.get_future().then(lambda done: done.value()[0])


def _backend_of(group: dist.ProcessGroup) -> ProcessGroupCCL:
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # at TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, ProcessGroupCCL):
        raise TypeError(
            f"torch_ccl.hooks need a group of backend ccl, not {type(backend).__name__}"
        )
    return backend
