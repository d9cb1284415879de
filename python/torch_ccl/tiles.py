"""Tiles: the parts of one machine on which single_card starts one rank each.

A tile is a device of the accelerator. Without an accelerator it is a part of the CPUs that this
process may use: a NUMA node, a socket, or half of the cores where there is only one of these.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import torch

from torch_ccl.agent.cores import ROOT, Core, RankCpus, cores_of, split_cores
from torch_ccl.child_environment import usable_cpus


def tiles_of_this_machine(count: int | None) -> list[RankCpus]:
    if count is not None and count < 1:
        raise ValueError(f"tiles={count}: there must be at least one")
    cpus = usable_cpus()
    if torch.accelerator.is_available():
        return device_tiles(torch.accelerator.device_count(), len(cores_of(cpus)), count)
    return cpu_tiles(cpus, count)


def device_tiles(devices: int, available_cores: int, count: int | None = None) -> list[RankCpus]:
    """These ranks are not pinned: it is not known which cores are close to a device."""
    count = count or devices
    if count > devices:
        raise ValueError(f"tiles={count}, but there are {devices} devices")
    return [RankCpus([], max(1, available_cores // count))] * count


def cpu_tiles(cpus: Iterable[int], count: int | None = None, root: Path = ROOT) -> list[RankCpus]:
    """Disjoint sets of CPUs. By default one per NUMA node or, if all CPUs are on one node, per
    socket; with one socket, two sets if there are two cores."""
    available = _with_sockets(cores_of(cpus, root), root)
    if count is None:
        nodes = [list(node) for _, node in groupby(available, key=lambda core: core.node)]
        if len(nodes) > 1:  # one set per node, even if their sizes differ
            return [part for node in nodes for part in split_cores(node, 1)]
        count = min(2, len(available))
    parts = split_cores(available, count)
    if not parts:
        available_cpus = sum(len(core.cpus) for core in available)
        raise ValueError(f"tiles={count}, but this process may use {available_cpus} CPUs only")
    return parts


def _with_sockets(available: list[Core], root: Path) -> list[Core]:
    """On a machine with one NUMA node, treat each socket as a node."""
    if len({core.node for core in available}) > 1:
        return available
    return sorted(core._replace(node=_socket(core.cpus[0], root)) for core in available)


def _socket(cpu: int, root: Path) -> int:
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
