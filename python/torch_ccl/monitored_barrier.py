"""monitored_barrier for groups of backend ccl: torch.distributed's accepts only gloo, by name."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """A barrier that names the ranks that did not reach it.

    `timeout` is a timedelta or seconds; default: the group's timeout. Rank 0 raises for the first
    missing rank, or with `wait_all_ranks` for all of them; then every other rank fails too.
    """
    target: Any = dist.group.WORLD if group is None else group
    if target == dist.GroupMember.NON_GROUP_MEMBER:
        return
    if isinstance(timeout, int | float):
        timeout = timedelta(seconds=timeout)
    target.monitored_barrier(timeout, wait_all_ranks)
