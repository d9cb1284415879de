"""torch.distributed.monitored_barrier refuses every backend but gloo by name; ours is here."""

from datetime import timedelta

import torch.distributed as dist


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """A barrier that names the ranks that did not come.

    `timeout` is a timedelta or seconds; it defaults to that of the group. Rank 0 raises for the
    first rank that is missing, or with `wait_all_ranks` for all of them; then all others fail too.
    """
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return
    if group is None:
        group = dist.group.WORLD
    if isinstance(timeout, int | float):
        timeout = timedelta(seconds=timeout)
    group.monitored_barrier(timeout, wait_all_ranks)
