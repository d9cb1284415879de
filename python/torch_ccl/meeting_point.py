"""Ranks on several hosts that are told to meet at a loopback address never would: say so.

Each of them would wait for a store on its own host, for half an hour, inside torch. So if what the
launcher says about the number of hosts makes that likely, and nobody serves a store here after a
while, that is an error. (Two launchers on one machine may say the same, but then the store comes.)
"""

import importlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from torch_ccl.launchers import is_loopback


class Sizes(NamedTuple):
    """The variables in which a launcher says how many ranks there are, here and in all."""

    local: str
    all: str


SIZES = (
    Sizes("LOCAL_WORLD_SIZE", "WORLD_SIZE"),  # torchrun
    Sizes("MPI_LOCALNRANKS", "PMI_SIZE"),  # MPICH and Intel MPI
    Sizes("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
)


#: How long rank 0 may take to come, if it is on this host after all.
PATIENCE_S = 8.0


def _are_on_several_hosts(environment: Mapping[str, str]) -> bool:
    for names in SIZES:
        local, size = (environment.get(name, "") for name in names)
        if local.isdecimal() and size.isdecimal():
            return int(local) < int(size)
    nodes = environment.get("SLURM_STEP_NUM_NODES", "")
    return nodes.isdecimal() and int(nodes) > 1


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def require_reachable(
    environment: Mapping[str, str], rank: str, patience_s: float = PATIENCE_S
) -> None:
    """Rank 0 serves the store and cannot know; the others wait for it, but not for ever."""
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    suspicious = is_loopback(address) and _are_on_several_hosts(environment)
    if not suspicious or rank in ("", "0") or not port.isdecimal():
        return
    end = time.monotonic() + patience_s
    while not _answers(address, int(port)):
        if time.monotonic() > end:
            raise ValueError(
                f"MASTER_ADDR={address} means every host itself, but the ranks are on several "
                f"hosts, and on this one nobody answers at port {port}: "
                "set it to the name or address of the host of rank 0"
            )
        time.sleep(0.1)


def _rank_in(url: str, environment: Mapping[str, str]) -> str:
    """Empty if nobody says it. torch puts what the call says into the URL; that comes first."""
    (rank, *_) = parse_qs(urlsplit(url).query).get("rank", [environment.get("RANK", "")])
    return rank


def watch_rendezvous() -> None:
    """Look before torch does; what it does is not changed."""
    # Not by `from torch.distributed import`: there the name is a function.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Callable[..., Iterator]] = rendezvous._rendezvous_handlers
    by_torch = handlers.get("env")
    if by_torch is None or getattr(by_torch, "is_checked", False):
        return

    def check_first(url: str, *args, **kwargs) -> Iterator:
        require_reachable(os.environ, _rank_in(url, os.environ), PATIENCE_S)
        return by_torch(url, *args, **kwargs)

    check_first.is_checked = True
    handlers["env"] = check_first
