"""What the launcher of this process says about its place in the job.

    complete(os.environ)

adds RANK, WORLD_SIZE, LOCAL_RANK, PMI_RANK and PMI_SIZE where they are missing, so that programs
written for one launcher run under another. What is set stays as it is; where no launcher is found,
nothing is added. A launcher is one row of LAUNCHERS. Knows nothing of torch.
"""

from collections.abc import MutableMapping
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables in which a launcher passes on rank, size and rank on this host."""

    name: str
    rank: str
    size: str
    local_rank: str


#: The first one that is found wins: the innermost launcher comes first.
LAUNCHERS = (
    Launcher("environment", "RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun, or set by hand
    Launcher("hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH and Intel MPI
)

#: Names under which programs look for rank and size.
_PAIRS = (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


class Place(NamedTuple):
    rank: str
    size: str
    local_rank: str | None


def _number(environment: MutableMapping[str, str], name: str) -> str | None:
    value = environment.get(name, "")
    return value if value.isdecimal() else None


def place_by(launcher: Launcher, environment: MutableMapping[str, str]) -> Place | None:
    """None unless the launcher says both rank and size."""
    rank, size = _number(environment, launcher.rank), _number(environment, launcher.size)
    if rank is None or size is None:
        return None
    return Place(rank, size, _number(environment, launcher.local_rank))


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1")


def _is_one_host(environment: MutableMapping[str, str]) -> bool:
    """Ranks that meet at a loopback address are on one host.

    So are those that somebody numbered by hand without naming an address.
    """
    unnamed = "localhost" if "RANK" in environment else ""
    return is_loopback(environment.get("MASTER_ADDR", unnamed))


def _local_rank(places: list[Place], environment: MutableMapping[str, str]) -> str | None:
    """Several launchers may describe the same place, and only one of them know the local rank."""
    same = [place for place in places if place[:2] == places[0][:2]]
    known = next((place.local_rank for place in same if place.local_rank), None)
    return known or (places[0].rank if _is_one_host(environment) else None)


def complete(environment: MutableMapping[str, str]) -> None:
    places = [place for row in LAUNCHERS if (place := place_by(row, environment))]
    if not places:
        return
    local_rank = _local_rank(places, environment)
    for pair in _PAIRS:
        values = dict(zip(pair, places[0][:2], strict=True))
        # Half a pair that says something else is somebody's mistake: a mixture would hide it.
        if all(environment.get(name, value) == value for name, value in values.items()):
            environment.update(values)
    if local_rank is not None:
        environment.setdefault("LOCAL_RANK", local_rank)
