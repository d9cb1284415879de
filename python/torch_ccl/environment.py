"""For scripts: rank and size of this process, a default group, and the settings in force."""

import atexit
import functools
import os
import sys
import threading
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from torch_ccl import launchers, libtccl


def get_dist_env() -> launchers.DistEnv:
    """Rank, size, host and launcher of this process. Without a launcher: rank 0 of 1.

    Raises ValueError if RANK and WORLD_SIZE contradict each other.
    """
    return launchers.get_dist_env(os.environ)


#: For operations that nobody waited for, at the end of the script.
_EXIT_WAIT = timedelta(seconds=10)

#: Arguments of init_process_group that select the rendezvous.
_RENDEZVOUS_ARGUMENTS = {"init_method", "store", "rank", "world_size"}


def init(backend: str = "ccl", **options: Any) -> launchers.DistEnv:
    """Create the default group if there is none, and destroy it when the script ends: operations
    still in progress then are completed first.

    `options` are those of init_process_group. Without a launcher this creates a group of one rank.
    """
    if not dist.is_initialized():
        has_launcher = get_dist_env().launcher != "none"
        if not has_launcher and not _RENDEZVOUS_ARGUMENTS & options.keys():
            options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group(backend, **options)
        atexit.register(_destroy_at_exit)
    return get_dist_env()


#: The argument of the last sys.exit(), and how many operations had been started before it.
_last_exit: tuple[str | int | None, int] = (None, 0)


def remember_exit_status() -> None:
    """Wrap sys.exit: nothing else tells functions of atexit with which status a script ends."""
    original = sys.exit

    @functools.wraps(original)
    def exit_with_status(status: str | int | None = None, /) -> NoReturn:
        global _last_exit
        # On another thread it ends that thread only.
        if threading.current_thread() is threading.main_thread():
            _last_exit = (status, _operation_count())
        original(status)

    sys.exit = exit_with_status


def _operation_count() -> int:
    from torch_ccl import _C

    return _C.operation_count()


def _ends_by_a_failure() -> bool:
    """An exception, or sys.exit() with a status other than 0. Peers may never join the operations
    in progress then. A script that catches SystemExit and goes on has not ended."""
    status, operations = _last_exit
    has_exited = operations == _operation_count()
    return getattr(sys, "last_value", None) is not None or bool(has_exited and status)


def _destroy_at_exit() -> None:
    """Complete operations in progress. After a failure the backend reports it to the peers instead,
    when the process ends."""
    if dist.is_initialized() and not _ends_by_a_failure():
        dist.destroy_process_group()


def close_at_exit() -> None:
    """Leave all groups. Operations in progress that nobody waited for are completed, if the peers
    join them soon; else the peers get an error."""
    from torch_ccl import _C

    _C._close(timedelta(0) if _ends_by_a_failure() else _EXIT_WAIT)


def settings() -> dict[str, str]:
    """The settings in force, by name. `torch-ccl info` also shows where each value comes from."""
    return {row["name"]: row["value"] for row in libtccl.info()["settings"]}
