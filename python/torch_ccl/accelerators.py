"""Which devices the backend serves besides the CPU, and who serves them.

Tensors of an accelerator travel through host memory, see docs/accelerators.md, unless torch has a
backend for that device which they can be handed to.
"""

import torch
import torch.distributed as dist


def check_device_types(names: list[str]) -> None:
    """Raises ValueError for a device that torch does not know."""
    for name in names:
        try:
            torch.device(name)
        except RuntimeError:
            raise ValueError(
                f"CCL_DEVICES names the device {name!r}, which torch does not know; "
                "is the package that brings it installed and imported?"
            ) from None


def hand_over(backend, group) -> None:
    """Let torch's own backend for XPUs serve their tensors, in a torch that has it.

    `group` is what torch.distributed said about the group that `backend` was made for.
    """
    if not (dist.is_xccl_available() and torch.xpu.is_available()):
        return
    options = dist.ProcessGroupXCCL.Options()
    options.global_ranks_in_group = group.global_ranks_in_group
    options.group_name = group.group_id
    options._timeout = group.timeout
    store = dist.PrefixStore("xccl/", group.store)
    xccl = dist.ProcessGroupXCCL(store, group.group_rank, group.group_size, options)
    backend._set_native("xpu", xccl)
