"""Device types that the backend serves besides the CPU.

Tensors of an accelerator are staged through host memory (docs/accelerators.md), unless torch has a
backend for that device; then their operations are forwarded to it.
"""

from typing import Any

import torch
import torch.distributed as dist

from torch_ccl._C import ProcessGroupCCL


def check_device_types(names: list[str]) -> None:
    """Raise ValueError for a device type that torch does not know."""
    for name in names:
        try:
            torch.device(name)
        except RuntimeError:
            raise ValueError(
                f"CCL_DEVICES names the device {name!r}, which torch does not know; "
                "is the package that provides it installed and imported?"
            ) from None


def attach_xccl(backend: ProcessGroupCCL, group: Any) -> None:
    """Forward XPU tensors to torch's own backend for them, where torch was built with it.

    `group` is the c10d::DistributedBackendOptions for which `backend` was created.
    """
    if not (dist.is_xccl_available() and torch.xpu.is_available()):
        return
    xccl_class: Any = dist.ProcessGroupXCCL
    if not hasattr(xccl_class, "Options"):  # torch 2.8: XPU tensors are staged
        return
    options = xccl_class.Options()
    options.global_ranks_in_group = group.global_ranks_in_group
    options.group_name = group.group_id
    options._timeout = group.timeout
    store = dist.PrefixStore("xccl/", group.store)
    xccl = xccl_class(store, group.group_rank, group.group_size, options)
    backend._set_device_backend("xpu", xccl)
