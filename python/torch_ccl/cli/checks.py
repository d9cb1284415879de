"""What `torch-ccl doctor` looks at: one function for each row of CHECKS.

A check gets a Machine, which a test can make up, and returns a Finding. It says what was found and,
if that is not well, what to do.
"""

import os
import platform
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from torch_ccl import launchers
from torch_ccl.agent.cores import ROOT, cores, list_text, parse_list
from torch_ccl.cli import fabric, known_settings
from torch_ccl.cli.host_agent import is_here
from torch_ccl.cli.machine import limits, online_cpus, text_of
from torch_ccl.cli.runner import Job, Runner
from torch_ccl.inheritance import cpus_of_this_process

OK, WARNING, PROBLEM = "ok", "warning", "problem"

OLDEST_KERNEL = (5, 3)  # the first with pidfd_open
RDMA_PROVIDERS = ("verbs", "efa", "cxi", "psm2", "psm3", "opx", "gni", "usnic")
MEMORY_OF_RANK = 512 << 20  # torch and a small model
SELF_TEST_S = 60.0
MIB, GIB = 1 << 20, 1 << 30


class Finding(NamedTuple):
    level: str
    found: str
    advice: str = ""


def addresses_of_this_host() -> list[str]:
    from torch_ccl import _C

    return _C.addresses_of_this_host()


def try_kernel() -> None:
    """Raises OSError if the kernel, or a filter of system calls, does not let us."""
    os.close(os.memfd_create("torch-ccl", os.MFD_CLOEXEC))
    os.close(os.pidfd_open(os.getpid()))


def can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError:
            return False
    return True


@dataclass
class Machine:
    """Where the checks look."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = ROOT
    allowed: list[int] = field(default_factory=cpus_of_this_process)
    release: str = field(default_factory=platform.release)
    host_name: str = field(default_factory=socket.gethostname)
    soft_limit: Callable[[int], int] = lambda what: resource.getrlimit(what)[0]
    try_kernel: Callable[[], None] = try_kernel
    ask_libfabric: Callable[[], dict] = fabric.look_up
    addresses: Callable[[], list[str]] = addresses_of_this_host
    setting_names: list[str] = field(default_factory=known_settings.setting_names)
    library_info: Callable[[], dict] = known_settings.library_info

    @cached_property
    def place(self) -> launchers.Place | None:
        return launchers.find(self.environment)

    @property
    def local_ranks(self) -> int:
        """As far as a launcher says it."""
        return (self.place.local_size or 1) if self.place else 1

    @property
    def provider(self) -> str:
        get = self.environment.get
        return get("CCL_ATL_PROVIDER") or get("FI_PROVIDER") or "tcp"

    def online(self) -> list[int]:
        return online_cpus(self.root)


# ---- the machine


def check_kernel(machine: Machine) -> Finding:
    version = tuple(map(int, re.findall(r"\d+", machine.release)[:2]))
    if version < OLDEST_KERNEL:
        return Finding(PROBLEM, f"kernel {machine.release}", "use Linux 5.3 or newer, for pidfd")
    try:
        machine.try_kernel()
    except OSError as problem:
        advice = "let the container's seccomp profile allow memfd_create and pidfd_open"
        return Finding(PROBLEM, f"kernel {machine.release}, but {problem.strerror}", advice)
    return Finding(OK, f"kernel {machine.release}: memfd and pidfd work")


def check_tracing(machine: Machine) -> Finding:
    scope = text_of(machine.root / "proc/sys/kernel/yama/ptrace_scope")
    found = f"ptrace_scope {scope}" if scope else "not restricted"
    return Finding(OK, f"{found}; not needed: ranks hand each other their memory over sockets")


def check_memory(machine: Machine) -> Finding:
    limit = limits(machine.root).memory_bytes
    if limit is None:
        return Finding(OK, "the cgroup has no limit; /dev/shm is not used")
    found = f"the cgroup's limit is {limit / GIB:.1f} GiB, also for shared memory"
    needed = machine.local_ranks * MEMORY_OF_RANK
    if limit < needed:
        advice = f"give {machine.local_ranks} ranks {needed / GIB:.1f} GiB or more"
        return Finding(WARNING, found, advice)
    return Finding(OK, f"{found}; /dev/shm is not used")


def _shared_bytes(machine: Machine) -> int:
    rows = {row["name"]: row["value"] for row in machine.library_info()["settings"]}
    match = re.fullmatch(r"(\d+)([KMG]?)", rows["CCL_SHARED_BYTES"].upper())
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def check_addresses_of_memory(machine: Machine) -> Finding:
    """Every rank maps what all ranks of its host share: a file of that size each, nearly empty."""
    try:
        share = _shared_bytes(machine)
    except known_settings.SettingError:
        return Finding(WARNING, "not known, since a setting makes no sense", "see: settings")
    ranks = max(2, machine.local_ranks)
    for name, what, needed in (
        ("ulimit -v", resource.RLIMIT_AS, share * ranks),
        ("ulimit -f", resource.RLIMIT_FSIZE, share),
    ):
        limit = machine.soft_limit(what)
        if limit != resource.RLIM_INFINITY and limit < needed:
            return Finding(
                PROBLEM,
                f"{name} is {limit / GIB:.1f} GiB, and {needed / GIB:.1f} GiB are set aside",
                f"{name} unlimited, or a smaller CCL_SHARED_BYTES",
            )
    return Finding(OK, f"{share / GIB:.1f} GiB can be set aside for each rank (CCL_SHARED_BYTES)")


# ---- cores


def check_cores(machine: Machine) -> Finding:
    allowed, online = len(machine.allowed), len(machine.online())
    found = f"{allowed} of {online} CPUs ({list_text(machine.allowed)})"
    quota = limits(machine.root).cpus
    if quota is not None and quota < allowed:
        return Finding(
            WARNING,
            f"{found}, but the cgroup allows the time of {quota:g}",
            f"use {max(1, int(quota))} threads in all, or raise cpu.max: ranks that wait for each "
            "other are halted by turns",
        )
    return Finding(OK, found)


def check_threads(machine: Machine) -> Finding:
    ranks = machine.local_ranks
    text = machine.environment.get("OMP_NUM_THREADS", "").split(",")[0]
    own = len(cores(machine.allowed, machine.root))
    threads = int(text) if text.isdecimal() else own
    said = f"OMP_NUM_THREADS={text}" if text else "OMP_NUM_THREADS is not set"
    found = f"{said}: {ranks} rank{'s' * (ranks > 1)} with {threads} threads"
    available = len(cores(limits(machine.root).cpuset or machine.online(), machine.root))
    if threads > own:
        return Finding(WARNING, f"{found} on {own} cores", f"set OMP_NUM_THREADS to {own}")
    if ranks * threads > available:
        best = max(1, available // ranks)
        return Finding(
            WARNING,
            f"{found} each on {available} cores",
            f"set OMP_NUM_THREADS to {best}, or start with torch-ccl run, which does",
        )
    return Finding(OK, found)


def _domains(text: str) -> list[set[int]]:
    """Of I_MPI_PIN_DOMAIN with a list of masks, [0xf,0xf0]; other forms say no cores."""
    match = re.fullmatch(r"\[\s*((?:0x)?[0-9a-fA-F]+(?:\s*,\s*(?:0x)?[0-9a-fA-F]+)*)\s*\]", text)
    masks = [int(mask, 16) for mask in match[1].split(",")] if match else []
    return [{cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1} for mask in masks]


def _workers_disagree(count: str, listed: list[int], machine: Machine) -> str:
    """Why, as the library says when it makes its workers."""
    ranks, own = machine.local_ranks, len(machine.allowed)
    # Outside of a job nobody knows how many ranks there will be.
    if machine.place and listed and count.isdecimal() and len(listed) != int(count) * ranks:
        needed = int(count) * ranks
        return f"{count} workers on each of {ranks} ranks need {needed} cores, not {len(listed)}"
    if listed and len(listed) % ranks:
        return f"{len(listed)} cores cannot be dealt out to {ranks} ranks"
    if missing := sorted(set(listed) - set(machine.online())):
        return f"there is no core {list_text(missing)}"
    if not listed and count.isdecimal() and int(count) > own:
        return f"{count} workers on {own} cores hinder each other"
    return ""


def _domains_disagree(listed: list[int], machine: Machine) -> str:
    domains = _domains(machine.environment.get("I_MPI_PIN_DOMAIN", ""))
    ranks = machine.local_ranks
    if not domains:
        return ""
    if machine.place and len(domains) != ranks:
        return f"I_MPI_PIN_DOMAIN has {len(domains)} masks for {ranks} ranks"
    each = len(listed) // len(domains)
    for rank in range(len(domains)):
        own = set(listed[rank * each : (rank + 1) * each])
        for other, domain in enumerate(domains):
            if other != rank and own & domain:
                shared = list_text(own & domain)
                return f"workers of rank {rank} are on core {shared}, which rank {other} has"
    return ""


def check_workers(machine: Machine) -> Finding:
    count = machine.environment.get("CCL_WORKER_COUNT", "auto")
    affinity = machine.environment.get("CCL_WORKER_AFFINITY", "auto")
    found = f"CCL_WORKER_COUNT={count}, CCL_WORKER_AFFINITY={affinity}"
    try:
        listed = [] if affinity == "auto" else parse_list(affinity)
    except ValueError:
        return Finding(PROBLEM, found, "CCL_WORKER_AFFINITY is auto or cores, such as 0,1,28-31")
    if why := _workers_disagree(count, listed, machine):
        advice = (
            "list CCL_WORKER_COUNT cores for each rank of this host in CCL_WORKER_AFFINITY, "
            "or unset both; torch-ccl info shows them"
        )
        return Finding(WARNING, f"{found}: {why}", advice)
    if why := _domains_disagree(listed, machine):
        advice = "give each rank one mask, and its workers no core in the mask of another"
        return Finding(WARNING, f"{found}: {why}", advice)
    return Finding(OK, found)


# ---- the network


def check_libfabric(machine: Machine) -> Finding:
    answer = machine.ask_libfabric()
    if "problem" in answer:
        return Finding(
            WARNING,
            f"{answer['problem']}: ranks on one host only",
            "for several hosts: apt install libfabric1, or dnf install libfabric",
        )
    providers = answer["providers"]
    found = f"libfabric {answer['version']} with {', '.join(providers) or 'no providers'}"
    if re.search("[,^]", machine.provider):
        return Finding(OK, f"{found}; FI_PROVIDER={machine.provider} leaves a choice")
    parts = {part for name in providers for part in (name, *name.split(";"))}
    if machine.provider not in parts:
        return Finding(
            PROBLEM,
            f"{found}; there is no {machine.provider}",
            "set CCL_ATL_PROVIDER to one of them",
        )
    return Finding(OK, f"{found}; {machine.provider} is used")


def check_locked_memory(machine: Machine) -> Finding:
    limit = machine.soft_limit(resource.RLIMIT_MEMLOCK)
    unlimited = limit == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{limit / MIB:.1f} MiB"
    if machine.provider.split(";")[0] not in RDMA_PROVIDERS:
        return Finding(OK, f"{found}; provider {machine.provider} does not need it")
    if unlimited:
        return Finding(OK, f"{found}, as provider {machine.provider} needs it")
    advice = "ulimit -l unlimited, also for services that start ranks (sshd, slurmd)"
    return Finding(WARNING, f"{found}, and provider {machine.provider} locks memory", advice)


def check_interfaces(machine: Machine) -> Finding:
    try:
        return Finding(OK, f"other hosts reach this one at {', '.join(machine.addresses())}")
    except (RuntimeError, ValueError) as problem:
        wanted = machine.environment.get("CCL_SOCKET_IFNAME")
        if wanted:
            return Finding(PROBLEM, str(problem), "correct CCL_SOCKET_IFNAME, or unset it")
        return Finding(WARNING, f"{problem}: ranks on one host only", "plug in a network")


def check_host_name(machine: Machine) -> Finding:
    name = machine.host_name
    try:
        found = {row[4][0] for row in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError as problem:
        return Finding(
            WARNING,
            f"{name}: {problem.strerror}; this library does not look it up, but Gloo does",
            "add it to /etc/hosts",
        )
    text = f"{name} is {', '.join(sorted(found))}"
    if all(map(launchers.is_loopback, found)):
        text += ", which is harmless: addresses are taken from the interfaces"
    return Finding(OK, text)


# ---- the environment


def check_settings(machine: Machine) -> Finding:
    try:
        rows = machine.library_info()["settings"]
    except known_settings.SettingError as problem:
        advice = "correct it, or unset it: then torch-ccl info shows the default"
        return Finding(PROBLEM, str(problem), advice)
    set_by_user = [row["name"] for row in rows if row["is_set"]]
    return Finding(OK, f"set: {', '.join(set_by_user)}" if set_by_user else "all are defaults")


def check_unknown_settings(machine: Machine) -> Finding:
    unknown = known_settings.unknown_settings(machine.environment, machine.setting_names)
    if not unknown:
        return Finding(OK, "none")
    advice = [f"{nearest} instead of {name}?" for name, nearest in unknown.items() if nearest]
    advice = [*advice, "torch-ccl info lists the settings"]
    return Finding(WARNING, f"{', '.join(unknown)}: ignored", " ".join(advice))


def check_place(machine: Machine) -> Finding:
    try:
        launchers.require_sense(machine.environment)
    except ValueError as problem:
        found, _, advice = str(problem).partition(": ")
        return Finding(PROBLEM, found, advice or "correct RANK and WORLD_SIZE, or unset both")
    if machine.place is None:
        return Finding(OK, "no launcher has started this process")
    place = machine.place
    return Finding(OK, f"rank {place.rank} of {place.size}, by {place.launcher}")


def check_meeting_point(machine: Machine) -> Finding:
    address = machine.environment.get("MASTER_ADDR", "")
    port = machine.environment.get("MASTER_PORT", "")
    if not port:
        return Finding(OK, "MASTER_PORT is not set")
    where = f"MASTER_ADDR={address} MASTER_PORT={port}"
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return Finding(PROBLEM, where, "set MASTER_PORT to a number between 1 and 65535")
    if machine.environment.get("RANK", "0") != "0" or not is_here(address or "localhost"):
        return Finding(OK, f"{where}: not of this process")
    if not can_listen(int(port)):
        return Finding(PROBLEM, f"{where}: the port is taken", "set MASTER_PORT to another one")
    return Finding(OK, f"{where}: the port is free")


# ---- all together

SELF_TEST = """
import torch, torch.distributed as dist, torch_ccl
place = torch_ccl.init()
x = torch.full((1000,), float(place.rank + 1))
dist.all_reduce(x)
assert x.eq(3).all(), x
"""


class Kept:
    """What ranks wrote, for a finding."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, _stream: int, _prefix: str, lines: bytes) -> None:
        self.lines += lines.decode(errors="replace").splitlines()


def check_by_trying(_machine: Machine) -> Finding:
    kept = Kept()
    began = time.monotonic()
    job = Job([sys.executable, "-c", SELF_TEST], {launchers.LOOPBACK: [0, 1]})
    code = Runner(job, kept).run(bound_s=SELF_TEST_S)
    if code == 0:
        took_s = time.monotonic() - began
        return Finding(OK, f"two ranks on this host added up, {took_s:.1f} s with their start")
    said = " / ".join(kept.lines[-2:])
    return Finding(PROBLEM, f"two ranks on this host: {said}", "run torch-ccl run -n 2 yourself")


CHECKS: tuple[tuple[str, Callable[[Machine], Finding]], ...] = (
    ("kernel", check_kernel),
    ("tracing", check_tracing),
    ("memory", check_memory),
    ("address space", check_addresses_of_memory),
    ("cores", check_cores),
    ("threads", check_threads),
    ("workers", check_workers),
    ("libfabric", check_libfabric),
    ("locked memory", check_locked_memory),
    ("interfaces", check_interfaces),
    ("host name", check_host_name),
    ("settings", check_settings),
    ("unknown settings", check_unknown_settings),
    ("place in the job", check_place),
    ("meeting point", check_meeting_point),
    ("two ranks", check_by_trying),
)
