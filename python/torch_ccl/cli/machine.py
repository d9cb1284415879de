"""What there is to know about this machine. Files are looked up under `root`, for the tests."""

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch_ccl.agent.cores import ROOT, cores, list_text, node_of_cpus, parse_list

#: What the kernels are compiled for, and the flags that they need: as in src/kernels/variants.cc.
INSTRUCTION_SETS = {
    "baseline": set(),
    "avx2": {"avx2", "f16c"},
    "avx512": {"avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx512_bf16": {
        *("avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
        "avx512_bf16",
    },
}


def text_of(path: Path) -> str:
    """Empty if there is no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# ---- cores


def online_cpus(root: Path = ROOT) -> list[int]:
    return parse_list(text_of(root / "sys/devices/system/cpu/online") or "0")


def topology(allowed: list[int], root: Path = ROOT) -> dict:
    online = online_cpus(root)
    cpu_root = root / "sys/devices/system/cpu"
    packages = {text_of(cpu_root / f"cpu{cpu}/topology/physical_package_id") for cpu in online}
    nodes: dict[int, list[int]] = {}
    for cpu, node in node_of_cpus(root).items():
        nodes.setdefault(node, []).append(cpu)
    return {
        "sockets": len(packages),
        "numa_nodes": {node: list_text(cpus) for node, cpus in sorted(nodes.items())},
        "cores": len(cores(online, root)),
        "threads": len(online),
        "usable_cpus": list_text(allowed),
        "usable_cores": len(cores(allowed, root)),
    }


def cpu_model(root: Path = ROOT) -> str:
    match = re.search(r"^model name\s*:(.*)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.processor()


def instruction_sets(root: Path = ROOT) -> list[str]:
    match = re.search(r"^flags\s*:(.*)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return [name for name, needed in INSTRUCTION_SETS.items() if needed <= flags]


# ---- cgroups: version 2, or 1, or both


class Limits(NamedTuple):
    """Of the cgroups that this process is in; None is no limit."""

    cpus: float | None  # so much time of CPUs
    cpuset: list[int] | None
    memory_bytes: int | None


def _directories(controller: str, root: Path) -> Iterator[Path]:
    """Of our cgroup and those above it, as far as they can be seen from here."""
    mounts = {"": root / "sys/fs/cgroup", controller: root / "sys/fs/cgroup" / controller}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in {"", controller} & set(controllers.split(",")):
            own = Path(path.lstrip("/"))
            yield from (mounts[name] / part for part in (own, *own.parents))


def _cpu_limits(root: Path) -> Iterator[float]:
    for directory in _directories("cpu", root):
        words = text_of(directory / "cpu.max").split()  # version 2
        if not words:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # version 1
            words = [text_of(directory / name) for name in names]
        quota, period = words
        if quota.isdecimal() and period.isdecimal():
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    for directory in _directories("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = text_of(directory / name)
            if text.isdecimal() and int(text) < 1 << 62:  # version 1 says "none" by such a number
                yield int(text)


def _cpusets(root: Path) -> Iterator[list[int]]:
    """The nearest first."""
    for directory in _directories("cpuset", root):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if text := text_of(directory / name):
                yield parse_list(text)


def limits(root: Path = ROOT) -> Limits:
    return Limits(
        min(_cpu_limits(root), default=None),
        next(_cpusets(root), None),
        min(_memory_limits(root), default=None),
    )
