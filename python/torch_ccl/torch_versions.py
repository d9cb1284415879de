"""What differs between versions of torch, for the Python files.

binding/torch_version.h has the same for the extension. Features are looked for, not versions.
"""

import functools
import sys
from types import FrameType
from typing import Any, TypeVar

from torch.distributed import distributed_c10d

T = TypeVar("T")


def set_default_backends() -> None:
    """Let groups of one backend per device have a default backend, as from torch 2.14 on.

    Before, as soon as any plugin is registered, groups of "cpu:gloo" or "cpu:ccl" have none: then
    sequence numbers raise, completion hooks are not called, and destroy_process_group() warns.
    """
    create = distributed_c10d._new_process_group_helper
    if hasattr(distributed_c10d, "set_timeout") or hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_with_default(*args: Any, **kwargs: Any) -> Any:
        group, store = create(*args, **kwargs)
        is_member = isinstance(group, distributed_c10d.ProcessGroup)
        if is_member and group.name() == "undefined":
            _set_default(group)
        return group, store

    distributed_c10d._new_process_group_helper = create_with_default


def resolve_group(group: Any) -> Any:
    """The process group of a mesh, or of a mesh and a dimension: itself or its name."""
    from torch.distributed import _functional_collectives

    resolve = getattr(_functional_collectives, "_resolve_group", None)  # from torch 2.13
    return (resolve or _functional_collectives._resolve_group_name)(group)


def functional_names(functions: dict[str, T]) -> dict[str, T]:
    """With the names that the functional collectives had before torch 2.13, if it is older."""
    from torch.distributed import _functional_collectives

    older = {
        "all_gather_single": "all_gather_tensor",
        "reduce_scatter_single": "reduce_scatter_tensor",
    }
    return {
        name if hasattr(_functional_collectives, name) else older[name]: function
        for name, function in functions.items()
    }


def name_of_new_group() -> str | None:
    """What error messages call the group that torch is creating; None outside of torch.distributed.

    A program names its groups by `group_desc`, but torch gives that to a backend only after it has
    been created, and at no defined time before its first use. So this looks into torch's function.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    if frame is None:
        return None
    description = frame.f_locals.get("group_desc")
    if description in (None, "undefined"):  # the group has none
        return frame.f_locals.get("group_name")
    return "world" if description == "default_pg" else description


def _set_default(group: Any) -> None:
    wrappers = (group._get_backend(device) for device in group._device_types)
    backends = [getattr(backend, "wrapped_pg", backend) for backend in wrappers]  # level DETAIL
    gloo = getattr(distributed_c10d, "ProcessGroupGloo", ())
    types = distributed_c10d.ProcessGroup.BackendType
    has_gloo = any(isinstance(backend, gloo) for backend in backends)
    group._set_default_backend(types.GLOO if has_gloo else types.CUSTOM)
