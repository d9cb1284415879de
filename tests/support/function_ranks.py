"""Runs a function on ranks on virtual hosts, in forked processes that have torch loaded (ranks.py).

    run_on_hosts(hosts, [1, 1], check_something, argument, CCL_PORT_RANGE="20000-20100")

calls check_something(rank, size, argument) on every rank. It takes tenths of a second; a new
interpreter for each rank (script_ranks.py) takes seconds.
"""

import ctypes
import os
from contextlib import AbstractContextManager
from functools import partial

from support import ranks
from support.rank_environments import rank_environments
from support.virtual_hosts import KINDS, Host, enter_namespace

CLONE_FS = 0x200


def enter(assigned: list[tuple[int, dict[str, str]]], rank: int) -> None:
    namespace_pid, environment = assigned[rank]
    ctypes.CDLL(None).unshare(CLONE_FS)  # other threads keep their file system context
    for kind in KINDS:
        enter_namespace(f"/proc/{namespace_pid}/ns/{kind}")
    os.environ.clear()
    os.environ.update(environment)


def _options(
    hosts: list[Host],
    layout: list[int],
    *,
    bound_s: float = ranks.BOUND_S,
    group: dict | None = None,
    **environment: str,
) -> dict:
    assigned = [
        (host.namespace_process.pid, own)
        for host, own in rank_environments(hosts, layout, **environment)
    ]
    how = {"init_method": "env://", **(group or {})}
    return {"bound_s": bound_s, "prepare": partial(enter, assigned), "group": how}


def started_on_hosts(
    hosts: list[Host], layout: list[int], function, *args, **options
) -> AbstractContextManager[list[ranks.ForkedRank]]:
    """Like ranks.started_ranks(), but on hosts; options in capitals are environment variables."""
    return ranks.started_ranks(sum(layout), function, *args, **_options(hosts, layout, **options))


def run_on_hosts(hosts: list[Host], layout: list[int], function, *args, **options) -> list:
    """Returns the ranks' return values; every rank must succeed."""
    return ranks.run_ranks(sum(layout), function, *args, **_options(hosts, layout, **options))
