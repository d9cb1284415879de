"""Facts about this machine. Files are read below `root`, so that tests can describe others."""

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch_ccl.agent.cores import ROOT, cores_of, format_cpu_list, node_of_cpus, parse_cpu_list

#: Instruction sets of the reduction kernels on x86-64 and the CPU flags they need:
#: src/kernels/variants.cc.
INSTRUCTION_SETS: dict[str, set[str]] = {
    "baseline": set(),
    "avx2": {"avx2", "f16c"},
    "avx512": {"avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx512_bf16": {
        *("avx2", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
        "avx512_bf16",
    },
}


def text_of(path: Path) -> str:
    """The content of a file; empty if there is no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# ---- CPUs and cores


def online_cpus(root: Path = ROOT) -> list[int]:
    return parse_cpu_list(text_of(root / "sys/devices/system/cpu/online") or "0")


def topology(allowed: list[int], root: Path = ROOT) -> dict[str, Any]:
    online = online_cpus(root)
    cpu_root = root / "sys/devices/system/cpu"
    packages = {text_of(cpu_root / f"cpu{cpu}/topology/physical_package_id") for cpu in online}
    nodes: dict[int, list[int]] = {}
    for cpu, node in node_of_cpus(root).items():
        nodes.setdefault(node, []).append(cpu)
    return {
        "sockets": len(packages),
        "numa_nodes": {node: format_cpu_list(cpus) for node, cpus in sorted(nodes.items())},
        "cores": len(cores_of(online, root)),
        "cpus": len(online),
        "usable_cpus": format_cpu_list(allowed),
        "usable_cores": len(cores_of(allowed, root)),
    }


def cpu_model(root: Path = ROOT) -> str:
    match = re.search(r"^model name\s*:(.*)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.processor()


def instruction_sets(root: Path = ROOT) -> list[str]:
    text = text_of(root / "proc/cpuinfo")
    if re.search(r"^Features\s*:.*\basimd\b", text, re.MULTILINE):  # aarch64
        return ["neon"]
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return [name for name, needed in INSTRUCTION_SETS.items() if needed <= flags]


# ---- cgroups: version 2, version 1, or both


class Limits(NamedTuple):
    """Limits of the cgroups that this process is in; None means no limit."""

    cpus: float | None  # CPU quota
    cpuset: list[int] | None
    memory_bytes: int | None


def _directories(controller: str, root: Path) -> Iterator[Path]:
    """This process's cgroup and its ancestors, as far as they are visible."""
    mounts = {"": root / "sys/fs/cgroup", controller: root / "sys/fs/cgroup" / controller}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in {"", controller} & set(controllers.split(",")):
            own = Path(path.lstrip("/"))
            yield from (mounts[name] / part for part in (own, *own.parents))


def _cpu_quotas(root: Path) -> Iterator[float]:
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
            if text.isdecimal() and int(text) < 1 << 62:  # version 1's "no limit" is near 2^63
                yield int(text)


def _cpusets(root: Path) -> Iterator[list[int]]:
    """The cpusets of this process's cgroup and its ancestors, its own first."""
    for directory in _directories("cpuset", root):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if text := text_of(directory / name):
                yield parse_cpu_list(text)


def limits(root: Path = ROOT) -> Limits:
    return Limits(
        min(_cpu_quotas(root), default=None),
        next(_cpusets(root), None),
        min(_memory_limits(root), default=None),
    )
