"""The cores of a host, and how to divide them among its ranks.

    split_cores(cores_of(os.sched_getaffinity(0)), 4)  # one RankCpus for each of four ranks

A CPU is a logical CPU with the number that Linux gives it. A core is a physical core: it has one
CPU, or several (hardware threads). Files are read below `root`, so that tests can describe other
machines.
"""

from collections.abc import Iterable
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOT = Path("/")
T = TypeVar("T")


class Core(NamedTuple):
    node: int  # NUMA node
    cpus: tuple[int, ...]


class RankCpus(NamedTuple):
    """The CPUs of one rank; `threads` is the number of threads that do not share a core."""

    cpus: list[int]
    threads: int


def parse_cpu_list(text: str) -> list[int]:
    """Parses the kernel's format: "0-2,8" is [0, 1, 2, 8]."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Writes the kernel's format: [0, 1, 2, 8] is "0-2,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def node_of_cpus(root: Path = ROOT) -> dict[int, int]:
    """The NUMA node of each CPU. Empty if sysfs has no nodes; all CPUs then count as one node."""
    nodes: dict[int, int] = {}
    for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist"):
        number = int(path.parent.name.removeprefix("node"))
        nodes.update(dict.fromkeys(parse_cpu_list(path.read_text()), number))
    return nodes


def _siblings(cpu: int, root: Path) -> tuple[int, ...]:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    try:
        return tuple(parse_cpu_list((topology / "thread_siblings_list").read_text()))
    except OSError:
        return (cpu,)


def cores_of(cpus: Iterable[int], root: Path = ROOT) -> list[Core]:
    """The cores of these CPUs, node by node; a core lists only CPUs that are given."""
    nodes = node_of_cpus(root)
    by_siblings: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(cpus):
        by_siblings.setdefault(_siblings(cpu, root), []).append(cpu)
    return sorted(Core(nodes.get(own[0], 0), tuple(own)) for own in by_siblings.values())


def _split(items: list[T], parts: int) -> list[list[T]]:
    """Contiguous parts whose lengths differ by at most one, longer ones first."""
    length, longer = divmod(len(items), parts) if parts else (0, 0)
    begins = [part * length + min(part, longer) for part in range(parts + 1)]
    return [items[begin:end] for begin, end in pairwise(begins)]


def _ranks_per_node(sizes: list[int], ranks: int) -> list[int]:
    """Assign one rank after the other to the node with the most cores per rank."""
    counts = [0] * len(sizes)
    for _ in range(ranks):
        best = max(range(len(sizes)), key=lambda node: sizes[node] / (counts[node] + 1))
        counts[best] += 1
    return counts


def split_cores(available: list[Core], ranks: int) -> list[RankCpus]:
    """The CPUs of each rank: whole cores if there are enough, else CPUs; empty if there are fewer
    CPUs than ranks.

    No set spans two nodes, unless there are fewer ranks than nodes: then a set is several nodes.
    """
    units = available
    if ranks > len(units):
        units = [Core(core.node, (cpu,)) for core in available for cpu in core.cpus]
    if ranks > len(units):
        return []
    nodes = [list(group) for _, group in groupby(units, key=lambda core: core.node)]
    if ranks < len(nodes):
        parts = [list(chain(*several)) for several in _split(nodes, ranks)]
    else:
        counts = _ranks_per_node([len(node) for node in nodes], ranks)
        parts = [
            part for node, count in zip(nodes, counts, strict=True) for part in _split(node, count)
        ]
    return [RankCpus([cpu for core in part for cpu in core.cpus], len(part)) for part in parts]
