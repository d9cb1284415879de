"""The cores of a host, and how its ranks share them.

    shares(cores(os.sched_getaffinity(0)), 4)  # one Share for each of four ranks

A CPU is what the kernel numbers. A core has one CPU, or several: hyperthreads. Files are looked up
under `root`, so that tests can describe other machines.
"""

from collections.abc import Iterable
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class Core(NamedTuple):
    node: int
    cpus: tuple[int, ...]


class Share(NamedTuple):
    """What one rank gets; `size` is the number of threads that do not hinder each other there."""

    cpus: list[int]
    size: int


def parse_list(text: str) -> list[int]:
    """As the kernel writes them: [0, 1, 2, 8] of "0-2,8"."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def list_text(numbers: Iterable[int]) -> str:
    """The other way round."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def node_of_cpus(root: Path = ROOT) -> dict[int, int]:
    """Empty where the kernel does not tell: then all CPUs count as one node's."""
    nodes = {}
    for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist"):
        number = int(path.parent.name.removeprefix("node"))
        nodes.update(dict.fromkeys(parse_list(path.read_text()), number))
    return nodes


def _siblings(cpu: int, root: Path) -> tuple[int, ...]:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    try:
        return tuple(parse_list((topology / "thread_siblings_list").read_text()))
    except OSError:
        return (cpu,)


def cores(cpus: Iterable[int], root: Path = ROOT) -> list[Core]:
    """With those of their CPUs that are given; node by node."""
    nodes = node_of_cpus(root)
    by_siblings: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(cpus):
        by_siblings.setdefault(_siblings(cpu, root), []).append(cpu)
    return sorted(Core(nodes.get(own[0], 0), tuple(own)) for own in by_siblings.values())


def _split(items: list, parts: int) -> list[list]:
    """Contiguous; the lengths differ by one at most, and the first are the longer ones."""
    length, longer = divmod(len(items), parts) if parts else (0, 0)
    begins = [part * length + min(part, longer) for part in range(parts + 1)]
    return [items[begin:end] for begin, end in pairwise(begins)]


def _ranks_of_nodes(sizes: list[int], ranks: int) -> list[int]:
    """One rank after the other goes where its share is largest."""
    counts = [0] * len(sizes)
    for _ in range(ranks):
        best = max(range(len(sizes)), key=lambda node: sizes[node] / (counts[node] + 1))
        counts[best] += 1
    return counts


def shares(available: list[Core], ranks: int) -> list[Share]:
    """Whole cores if there are enough of them, else CPUs; empty if these are too few as well.

    No share crosses a node, unless there are fewer ranks than nodes: then a share is several.
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
        counts = _ranks_of_nodes([len(node) for node in nodes], ranks)
        parts = [
            part for node, count in zip(nodes, counts, strict=True) for part in _split(node, count)
        ]
    return [Share([cpu for core in part for cpu in core.cpus], len(part)) for part in parts]
