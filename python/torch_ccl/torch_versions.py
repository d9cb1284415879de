"""What differs between versions of torch, for the Python files.

binding/torch_version.h has the same for the extension. Features are looked for, not versions.
"""

import functools
from typing import Any

from torch.distributed import distributed_c10d


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


def _set_default(group: Any) -> None:
    wrappers = (group._get_backend(device) for device in group._device_types)
    backends = [getattr(backend, "wrapped_pg", backend) for backend in wrappers]  # level DETAIL
    gloo = getattr(distributed_c10d, "ProcessGroupGloo", ())
    types = distributed_c10d.ProcessGroup.BackendType
    has_gloo = any(isinstance(backend, gloo) for backend in backends)
    group._set_default_backend(types.GLOO if has_gloo else types.CUSTOM)
