"""Rank and size of this process, as its launcher passes them in environment variables.

    export_rank_variables(os.environ)

adds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, PMI_RANK and PMI_SIZE where they are missing,
so that programs written for one launcher run under another. It never changes a variable that is
set, and adds nothing where no launcher is detected. Each launcher is one row of LAUNCHERS. This
module does not need torch.
"""

import re
import socket
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables in which a launcher passes rank and size, global and on this host."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


ENVIRONMENT = Launcher("environment", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

#: Innermost launcher first; the first one detected wins. Slurm starts MPI's launchers, not the
#: other way round; RANK and WORLD_SIZE come from torchrun or were set by hand.
LAUNCHERS = (
    ENVIRONMENT,
    # oneCCL's CCL_PROCESS_LAUNCHER=none: the script also sets the local rank.
    Launcher("oneCCL's variables", "RANK", "WORLD_SIZE", "CCL_LOCAL_RANK", "CCL_LOCAL_SIZE"),
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
    # The number of tasks of the *step*: a batch script is not a task and has only the job's number.
    Launcher(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
)

#: Pairs of names in which programs look for rank and size.
_RANK_AND_SIZE = (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


class RankInfo(NamedTuple):
    """Rank and size as a launcher gives them; None where it does not."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None

    def has_same_rank(self, other: "RankInfo | None") -> bool:
        return other is not None and (self.rank, self.size) == (other.rank, other.size)


class DistEnv(NamedTuple):
    """Rank, size and host of this process. Without a launcher: rank 0 of 1."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    host: str
    launcher: str
    master: str  # "address:port" of the store; empty if it is not known yet


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else None


def _local_size(environment: Mapping[str, str], name: str) -> int | None:
    """Slurm lists the tasks of all nodes: 2(x3),1 for three nodes with two and one with one."""
    node = _number(environment, "SLURM_NODEID") if name.startswith("SLURM_") else 0
    counts: list[int] = []
    for part in environment.get(name, "").split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            counts += [int(match[1])] * int(match[2] or 1)
    return counts[node] if node is not None and node < len(counts) else None


def read_variables(launcher: Launcher, environment: Mapping[str, str]) -> RankInfo | None:
    """What the launcher's variables say; None unless both rank and size are set."""
    rank, size = _number(environment, launcher.rank), _number(environment, launcher.size)
    if rank is None or size is None:
        return None
    local_rank = _number(environment, launcher.local_rank)
    local_size = _local_size(environment, launcher.local_size)
    return RankInfo(launcher.name, rank, size, local_rank, local_size)


LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1")


def _is_one_host(environment: Mapping[str, str]) -> bool:
    """Whether the store is at a loopback address, so that all ranks must be on one host.

    Ranks that were numbered by hand, without an address, are on one host too.
    """
    default = "localhost" if "RANK" in environment else ""
    return is_loopback(environment.get("MASTER_ADDR", default))


def detect(environment: Mapping[str, str]) -> RankInfo | None:
    """Combine the launchers' variables: several launchers may describe the same rank, and only one
    of them may give the local rank."""
    found = [info for row in LAUNCHERS if (info := read_variables(row, environment))]
    if not found:
        return None
    first = found[0]
    same = [info for info in found if info.has_same_rank(first)]
    with_local_rank = [info for info in same if info.local_rank is not None]
    local_sizes = [info.local_size for info in same if info.local_size is not None]
    # export_rank_variables() may have set RANK; the launcher is the one with the local rank.
    others = (info.launcher for info in with_local_rank if info.launcher != ENVIRONMENT.name)
    is_torchrun = "TORCHELASTIC_RUN_ID" in environment
    launcher = first.launcher if is_torchrun else next(others, first.launcher)
    if with_local_rank:
        local_rank = with_local_rank[0].local_rank
        return RankInfo(launcher, first.rank, first.size, local_rank, (*local_sizes, None)[0])
    if _is_one_host(environment):
        local_size = (*local_sizes, first.size)[0]
        return RankInfo(launcher, first.rank, first.size, first.rank, local_size)
    return RankInfo(launcher, first.rank, first.size, None, (*local_sizes, None)[0])


def validate_rank_variables(environment: Mapping[str, str]) -> None:
    """Raise ValueError for RANK and WORLD_SIZE with which torch would wait for missing ranks."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if bool(rank) != bool(size):
        present, missing = ("RANK", "WORLD_SIZE") if rank else ("WORLD_SIZE", "RANK")
        raise ValueError(
            f"{present}={rank or size} is set, but {missing} is not: set both, or neither"
        )
    if not rank:
        return
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if not value.isdecimal():
            raise ValueError(f"{name}={value} is not a non-negative number")
    if int(rank) >= int(size):
        raise ValueError(f"RANK={rank} of WORLD_SIZE={size}: ranks go from 0 to WORLD_SIZE - 1")


def get_dist_env(environment: Mapping[str, str]) -> DistEnv:
    validate_rank_variables(environment)
    info = detect(environment) or RankInfo("none", 0, 1, 0, 1)
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    return DistEnv(
        info.rank,
        info.size,
        info.local_rank if info.local_rank is not None else info.rank,
        info.local_size if info.local_size is not None else info.size,
        socket.gethostname(),
        info.launcher,
        f"{address}:{port}" if address and port else "",
    )


#: Variables that export_rank_variables() has added; they are not evidence of a launcher.
_exported: set[str] = set()


def is_set_by_launcher(info: RankInfo, environment: Mapping[str, str]) -> bool:
    """Whether a launcher gives this rank and size, rather than RANK and WORLD_SIZE alone."""
    rows = (row for row in LAUNCHERS if row.rank not in {ENVIRONMENT.rank, *_exported})
    return any(info.has_same_rank(read_variables(row, environment)) for row in rows)


def export_rank_variables(environment: MutableMapping[str, str]) -> None:
    info = detect(environment)
    if info is None:
        return
    for names in _RANK_AND_SIZE:
        values = dict(zip(names, (str(info.rank), str(info.size)), strict=True))
        # Completing a pair of which one variable has another value would hide a user's mistake.
        if all(environment.get(name, value) == value for name, value in values.items()):
            _exported.update(name for name in names if name not in environment)
            environment.update(values)
    for name, value in (("LOCAL_RANK", info.local_rank), ("LOCAL_WORLD_SIZE", info.local_size)):
        if value is not None:
            environment.setdefault(name, str(value))
