"""For scripts: their place in the job, a group of all of it, and the settings in force."""

import atexit
import os
import sys

import torch.distributed as dist

from torch_ccl import _C, launchers


def get_dist_env() -> launchers.DistEnv:
    """Rank, size, host and launcher of this process. Without a launcher it is the only one.

    Raises ValueError if RANK and WORLD_SIZE contradict each other.
    """
    return launchers.get_dist_env(os.environ)


#: Options of init_process_group by which the ranks find each other.
_MEETING = {"init_method", "store", "rank", "world_size"}


def init(backend: str = "ccl", **options) -> launchers.DistEnv:
    """Make the default group, unless there is one, and end it in order when the script ends:
    operations that are under way then are completed.

    `options` are those of init_process_group. Works without a launcher, too: a group of one.
    """
    if not dist.is_initialized():
        place = get_dist_env()
        if place.launcher == "none" and not _MEETING & options.keys():
            options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group(backend, **options)
        atexit.register(_end)
    return get_dist_env()


def _end() -> None:
    """Completes what is under way. After an error others may never come to it: they are told of
    that instead, when the process ends."""
    has_failed = getattr(sys, "last_value", None) is not None
    if dist.is_initialized() and not has_failed:
        dist.destroy_process_group()


def settings() -> dict[str, str]:
    """The settings in force, by name. `torch-ccl info` also says where each comes from."""
    return {row["name"]: row["value"] for row in _C.info()["settings"]}
