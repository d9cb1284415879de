"""Checks of the kernel and of memory."""

import re
import resource

from torch_ccl import libtccl
from torch_ccl.cli.checks.finding import GIB, OK, PROBLEM, WARNING, Finding, Machine
from torch_ccl.cli.machine import limits, text_of

OLDEST_KERNEL = (5, 3)  # the first with pidfd_open
MEMORY_PER_RANK = 512 << 20  # torch and a small model


def check_kernel(machine: Machine) -> Finding:
    version = tuple(map(int, re.findall(r"\d+", machine.release)[:2]))
    if version < OLDEST_KERNEL:
        return Finding(PROBLEM, f"kernel {machine.release}", "use Linux 5.3 or newer, for pidfd")
    try:
        machine.call_kernel()
    except OSError as problem:
        advice = "allow memfd_create and pidfd_open in the container's seccomp profile"
        return Finding(PROBLEM, f"kernel {machine.release}, but {problem.strerror}", advice)
    return Finding(OK, f"kernel {machine.release}: memfd and pidfd work")


def check_ptrace(machine: Machine) -> Finding:
    scope = text_of(machine.root / "proc/sys/kernel/yama/ptrace_scope")
    found = f"ptrace_scope {scope}" if scope else "not restricted"
    return Finding(OK, f"{found}; not needed: ranks pass memory as file descriptors over sockets")


def check_memory(machine: Machine) -> Finding:
    limit = limits(machine.root).memory_bytes
    if limit is None:
        return Finding(OK, "the cgroup has no limit; /dev/shm is not used")
    found = f"the cgroup's limit is {limit / GIB:.1f} GiB, including shared memory"
    needed = machine.local_ranks * MEMORY_PER_RANK
    if limit < needed:
        advice = f"give {machine.local_ranks} ranks {needed / GIB:.1f} GiB or more"
        return Finding(WARNING, found, advice)
    return Finding(OK, f"{found}; /dev/shm is not used")


def _shared_bytes(info: libtccl.Info) -> int:
    values = {row["name"]: row["value"] for row in info["settings"]}
    match = re.fullmatch(r"(\d+)([KMG]?)", values["CCL_SHARED_BYTES"].upper())
    assert match, "the library has parsed the value"
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def check_address_space(machine: Machine) -> Finding:
    """Every rank maps one sparse file of CCL_SHARED_BYTES for each rank of its host."""
    try:
        reserved = _shared_bytes(machine.library_info())
    except libtccl.Error:
        return Finding(WARNING, "not known, because a setting is invalid", "see: settings")
    ranks = max(2, machine.local_ranks)
    for name, resource_id, needed in (
        ("ulimit -v", resource.RLIMIT_AS, reserved * ranks),
        ("ulimit -f", resource.RLIMIT_FSIZE, reserved),
    ):
        limit = machine.soft_limit(resource_id)
        if limit != resource.RLIM_INFINITY and limit < needed:
            return Finding(
                PROBLEM,
                f"{name} is {limit / GIB:.1f} GiB, but {needed / GIB:.1f} GiB are reserved",
                f"{name} unlimited, or a smaller CCL_SHARED_BYTES",
            )
    return Finding(OK, f"each rank can reserve {reserved / GIB:.1f} GiB (CCL_SHARED_BYTES)")
