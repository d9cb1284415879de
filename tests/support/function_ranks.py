"""Functions as ranks on virtual hosts, in processes that have torch loaded already: ranks.py.

    run_on_hosts(hosts, [1, 1], check_something, argument, CCL_PORT_RANGE="20000-20100")

calls check_something(rank, size, argument) on every rank. Takes tenths of a second where a fresh
interpreter (script_ranks.py) takes many seconds.
"""

import ctypes
import os
from contextlib import AbstractContextManager
from functools import partial

from support import ranks
from support.rank_environments import rank_environments
from support.virtual_hosts import KINDS, Host, enter_namespace

CLONE_FS = 0x200


def _enter(placed: list[tuple[int, dict[str, str]]], rank: int) -> None:
    keeper, environment = placed[rank]
    ctypes.CDLL(None).unshare(CLONE_FS)  # from the threads that there are: they stay where they are
    for kind in KINDS:
        enter_namespace(f"/proc/{keeper}/ns/{kind}")
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
    placed = [
        (host.keeper.pid, own) for host, own in rank_environments(hosts, layout, **environment)
    ]
    how = {"init_method": "env://", **(group or {})}
    return {"bound_s": bound_s, "prepare": partial(_enter, placed), "group": how}


def started_on_hosts(
    hosts: list[Host], layout: list[int], function, *args, **options
) -> AbstractContextManager[list[ranks.Rank]]:
    """As ranks.started_ranks(); options in capitals are for the environment."""
    return ranks.started_ranks(sum(layout), function, *args, **_options(hosts, layout, **options))


def run_on_hosts(hosts: list[Host], layout: list[int], function, *args, **options) -> list:
    """What the ranks returned; all must end well."""
    return ranks.run_ranks(sum(layout), function, *args, **_options(hosts, layout, **options))
