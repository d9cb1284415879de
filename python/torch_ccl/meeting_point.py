"""Ranks on several hosts that are told to meet at a loopback address never would: say so.

Each of them would wait for a store on its own host, for half an hour, inside torch. What the
launcher says about the number of hosts is looked at when torch is about to make the store.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from torch.distributed import rendezvous


class Sizes(NamedTuple):
    """The variables in which a launcher says how many ranks there are, here and in all."""

    local: str
    all: str


SIZES = (
    Sizes("LOCAL_WORLD_SIZE", "WORLD_SIZE"),  # torchrun
    Sizes("MPI_LOCALNRANKS", "PMI_SIZE"),  # MPICH and Intel MPI
    Sizes("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
)


def _are_on_several_hosts(environment: Mapping[str, str]) -> bool:
    for names in SIZES:
        local, size = (environment.get(name, "") for name in names)
        if local.isdecimal() and size.isdecimal():
            return int(local) < int(size)
    nodes = environment.get("SLURM_STEP_NUM_NODES", "")
    return nodes.isdecimal() and int(nodes) > 1


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1")


def require_reachable(environment: Mapping[str, str]) -> None:
    address = environment.get("MASTER_ADDR", "")
    if _is_loopback(address) and _are_on_several_hosts(environment):
        raise ValueError(
            f"MASTER_ADDR={address} means every host itself, but the ranks are on several hosts: "
            "set it to the name or address of the host of rank 0"
        )


def watch_rendezvous() -> None:
    """Look before torch does; what it does is not changed."""
    handlers: dict[str, Callable[..., Iterator]] = rendezvous._rendezvous_handlers
    by_torch = handlers.get("env")
    if by_torch is None or getattr(by_torch, "is_checked", False):
        return

    def check_first(*args, **kwargs) -> Iterator:
        require_reachable(os.environ)
        return by_torch(*args, **kwargs)

    check_first.is_checked = True
    handlers["env"] = check_first
