"""What the launcher of this process says about its place in the job.

    complete(os.environ)

adds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, PMI_RANK and PMI_SIZE where they are missing,
so that programs written for one launcher run under another. What is set stays as it is; where no
launcher is found, nothing is added. A launcher is one row of LAUNCHERS. Knows nothing of torch.
"""

import re
import socket
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables in which a launcher passes on rank and size, in the job and on this host."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


ENVIRONMENT = Launcher("environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

#: The first one that is found wins: the innermost launcher comes first. MPI's are started by
#: Slurm's, not the other way round; RANK and WORLD_SIZE come from torchrun or were set by hand.
LAUNCHERS = (
    ENVIRONMENT,
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher(
        "MVAPICH",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher("PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE"),
    # MPICH and Intel MPI
    Launcher("hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # The number of tasks of the *step*: a batch script, which is no task, has only that of the job.
    Launcher(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
)

#: Names under which programs look for rank and size.
_PAIRS = (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


class Place(NamedTuple):
    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None

    def is_same(self, other: "Place | None") -> bool:
        return other is not None and (self.rank, self.size) == (other.rank, other.size)


class DistEnv(NamedTuple):
    """Where this process is in its job. Without a launcher it is the only one."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    host: str
    launcher: str
    master: str  # "address:port" where the ranks meet; empty if nobody has said it yet


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else None


def _local_size(environment: Mapping[str, str], name: str) -> int | None:
    """A number; but Slurm writes those of all nodes: 2(x3),1 for three nodes of two, one of one."""
    node = _number(environment, "SLURM_NODEID") if name.startswith("SLURM_") else 0
    counts: list[int] = []
    for part in environment.get(name, "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            counts += [int(match[1])] * int(match[2] or 1)
    return counts[node] if node is not None and node < len(counts) else None


def place_by(launcher: Launcher, environment: Mapping[str, str]) -> Place | None:
    """None unless the launcher says both rank and size."""
    rank, size = _number(environment, launcher.rank), _number(environment, launcher.size)
    if rank is None or size is None:
        return None
    local_rank = _number(environment, launcher.local_rank)
    local_size = _local_size(environment, launcher.local_size)
    return Place(launcher.name, rank, size, local_rank, local_size)


LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1")


def _is_one_host(environment: Mapping[str, str]) -> bool:
    """Ranks that meet at a loopback address are on one host.

    So are those that somebody numbered by hand without naming an address.
    """
    unnamed = "localhost" if "RANK" in environment else ""
    return is_loopback(environment.get("MASTER_ADDR", unnamed))


def find(environment: Mapping[str, str]) -> Place | None:
    """Several launchers may describe the same place, and only one of them know all of it."""
    places = [place for row in LAUNCHERS if (place := place_by(row, environment))]
    if not places:
        return None
    first = places[0]
    same = [place for place in places if place.is_same(first)]
    # Those who know the local rank: complete() has set the other numbers for many programs.
    knowing = [place for place in same if place.local_rank is not None]
    sizes = [place.local_size for place in same if place.local_size is not None]
    others = (p.launcher for p in knowing if p.launcher != ENVIRONMENT.name)
    is_torchrun = "TORCHELASTIC_RUN_ID" in environment
    launcher = first.launcher if is_torchrun else next(others, first.launcher)
    if knowing:
        return Place(launcher, first.rank, first.size, knowing[0].local_rank, (*sizes, None)[0])
    if _is_one_host(environment):
        return Place(launcher, first.rank, first.size, first.rank, (*sizes, first.size)[0])
    return Place(launcher, first.rank, first.size, None, (*sizes, None)[0])


def require_sense(environment: Mapping[str, str]) -> None:
    """Raise ValueError for a place that cannot be: torch would wait for ranks that never come."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if bool(rank) != bool(size):
        there, missing = ("RANK", "WORLD_SIZE") if rank else ("WORLD_SIZE", "RANK")
        raise ValueError(
            f"{there}={rank or size} is set, but {missing} is not: set both, or neither"
        )
    if not rank:
        return
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if not value.isdecimal():
            raise ValueError(f"{name}={value} is not a number from 0 on")
    if int(rank) >= int(size):
        raise ValueError(f"RANK={rank} of WORLD_SIZE={size}: ranks go from 0 to WORLD_SIZE - 1")


def get_dist_env(environment: Mapping[str, str]) -> DistEnv:
    require_sense(environment)
    place = find(environment) or Place("none", 0, 1, 0, 1)
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    return DistEnv(
        place.rank,
        place.size,
        place.local_rank if place.local_rank is not None else place.rank,
        place.local_size if place.local_size is not None else place.size,
        socket.gethostname(),
        place.launcher,
        f"{address}:{port}" if address and port else "",
    )


#: What complete() has added, which is then not what a launcher has said.
_added: set[str] = set()


def is_said_by_launcher(place: Place, environment: Mapping[str, str]) -> bool:
    """Rather than by somebody who has set RANK and WORLD_SIZE."""
    rows = (row for row in LAUNCHERS if row is not ENVIRONMENT and row.rank not in _added)
    return any(place.is_same(place_by(row, environment)) for row in rows)


def complete(environment: MutableMapping[str, str]) -> None:
    place = find(environment)
    if place is None:
        return
    for pair in _PAIRS:
        values = dict(zip(pair, (str(place.rank), str(place.size)), strict=True))
        # Half a pair that says something else is somebody's mistake: a mixture would hide it.
        if all(environment.get(name, value) == value for name, value in values.items()):
            _added.update(name for name in pair if name not in environment)
            environment.update(values)
    for name, value in zip(("LOCAL_RANK", "LOCAL_WORLD_SIZE"), place[3:], strict=True):
        if value is not None:
            environment.setdefault(name, str(value))
