"""Checks of CPUs, threads and the library's worker threads."""

import re

from torch_ccl.agent.cores import cores_of, format_cpu_list, parse_cpu_list
from torch_ccl.cli.checks.finding import OK, PROBLEM, WARNING, Finding, Machine
from torch_ccl.cli.machine import limits


def check_cpus(machine: Machine) -> Finding:
    allowed, online = len(machine.allowed), len(machine.online())
    found = f"{allowed} of {online} CPUs ({format_cpu_list(machine.allowed)})"
    quota = limits(machine.root).cpus
    if quota is not None and quota < allowed:
        return Finding(
            WARNING,
            f"{found}, but the cgroup's CPU quota is {quota:g}",
            f"use {max(1, int(quota))} threads in total, or raise cpu.max: the kernel throttles "
            "ranks that wait for each other",
        )
    return Finding(OK, found)


def check_threads(machine: Machine) -> Finding:
    ranks = machine.local_ranks
    text = machine.environment.get("OMP_NUM_THREADS", "").split(",")[0]
    own = len(cores_of(machine.allowed, machine.root))
    threads = int(text) if text.isdecimal() else own
    setting = f"OMP_NUM_THREADS={text}" if text else "OMP_NUM_THREADS is not set"
    found = f"{setting}: {ranks} rank{'s' * (ranks > 1)} with {threads} threads"
    available = len(cores_of(limits(machine.root).cpuset or machine.online(), machine.root))
    if threads > own:
        return Finding(WARNING, f"{found} on {own} cores", f"set OMP_NUM_THREADS to {own}")
    if ranks * threads > available:
        best = max(1, available // ranks)
        return Finding(
            WARNING,
            f"{found} each on {available} cores",
            f"set OMP_NUM_THREADS to {best}, or start with torch-ccl run, which sets it",
        )
    return Finding(OK, found)


def _pin_domains(text: str) -> list[set[int]]:
    """The CPUs of each mask if I_MPI_PIN_DOMAIN is a list of masks, [0xf,0xf0]; other forms do not
    name CPUs."""
    match = re.fullmatch(r"\[\s*((?:0x)?[0-9a-fA-F]+(?:\s*,\s*(?:0x)?[0-9a-fA-F]+)*)\s*\]", text)
    masks = [int(mask, 16) for mask in match[1].split(",")] if match else []
    return [{cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1} for mask in masks]


def _worker_conflict(count: str, listed: list[int], machine: Machine) -> str:
    """Why the worker settings do not fit together; the library warns of the same."""
    ranks, own = machine.local_ranks, len(machine.allowed)
    # Outside of a job the number of ranks is not known.
    if machine.rank_info and listed and count.isdecimal() and len(listed) != int(count) * ranks:
        needed = int(count) * ranks
        return f"{count} workers on each of {ranks} ranks need {needed} CPUs, not {len(listed)}"
    if listed and len(listed) % ranks:
        return f"{len(listed)} CPUs cannot be divided among {ranks} ranks"
    if missing := sorted(set(listed) - set(machine.online())):
        return f"there is no CPU {format_cpu_list(missing)}"
    if not listed and count.isdecimal() and int(count) > own:
        return f"{count} workers on {own} CPUs compete with each other"
    return ""


def _domain_conflict(listed: list[int], machine: Machine) -> str:
    domains = _pin_domains(machine.environment.get("I_MPI_PIN_DOMAIN", ""))
    ranks = machine.local_ranks
    if not domains:
        return ""
    if machine.rank_info and len(domains) != ranks:
        return f"I_MPI_PIN_DOMAIN has {len(domains)} masks for {ranks} ranks"
    per_rank = len(listed) // len(domains)
    for rank in range(len(domains)):
        own = set(listed[rank * per_rank : (rank + 1) * per_rank])
        for other, domain in enumerate(domains):
            if other != rank and own & domain:
                shared = format_cpu_list(own & domain)
                return f"workers of rank {rank} are on CPU {shared}, which rank {other} uses"
    return ""


def check_workers(machine: Machine) -> Finding:
    count = machine.environment.get("CCL_WORKER_COUNT", "auto")
    affinity = machine.environment.get("CCL_WORKER_AFFINITY", "auto")
    found = f"CCL_WORKER_COUNT={count}, CCL_WORKER_AFFINITY={affinity}"
    try:
        listed = [] if affinity == "auto" else parse_cpu_list(affinity)
    except ValueError:
        return Finding(PROBLEM, found, "set CCL_WORKER_AFFINITY to auto or CPUs: 0,1,28-31")
    if reason := _worker_conflict(count, listed, machine):
        advice = (
            "list CCL_WORKER_COUNT CPUs for each rank of this host in CCL_WORKER_AFFINITY, "
            "or unset both; torch-ccl info shows them"
        )
        return Finding(WARNING, f"{found}: {reason}", advice)
    if reason := _domain_conflict(listed, machine):
        advice = "give each rank one mask, and its workers no CPU in the mask of another"
        return Finding(WARNING, f"{found}: {reason}", advice)
    return Finding(OK, found)
