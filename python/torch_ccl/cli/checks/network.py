"""Checks of libfabric, network interfaces and names."""

import re
import resource
import socket

from torch_ccl import launchers, libtccl
from torch_ccl.cli.checks.finding import MIB, OK, PROBLEM, WARNING, Finding, Machine

RDMA_PROVIDERS = ("verbs", "efa", "cxi", "psm2", "psm3", "opx", "gni", "usnic")


def check_libfabric(machine: Machine) -> Finding:
    answer = machine.query_libfabric()
    if "problem" in answer:
        return Finding(
            WARNING,
            f"{answer['problem']}: ranks can run on one host only",
            "for several hosts: apt install libfabric1, or dnf install libfabric",
        )
    providers = answer["providers"]
    found = f"libfabric {answer['version']} with {', '.join(providers) or 'no providers'}"
    if re.search("[,^]", machine.provider):
        return Finding(OK, f"{found}; FI_PROVIDER={machine.provider} allows several")
    parts = {part for name in providers for part in (name, *name.split(";"))}
    if machine.provider not in parts:
        text = f"{found}; there is no {machine.provider}"
        if machine.environment.get("CCL_ATL_PROVIDER"):
            return Finding(PROBLEM, text, "set CCL_ATL_PROVIDER to one of them")
        return Finding(WARNING, f"{text}, as FI_PROVIDER says: tcp is used", "unset FI_PROVIDER")
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
    except libtccl.Error as problem:
        if machine.environment.get("CCL_SOCKET_IFNAME"):
            return Finding(PROBLEM, str(problem), "correct CCL_SOCKET_IFNAME, or unset it")
        advice = "for several hosts: connect a network"
        return Finding(WARNING, f"{problem}: ranks can run on one host only", advice)


def check_host_name(machine: Machine) -> Finding:
    name = machine.host_name
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError as problem:
        return Finding(
            WARNING,
            f"{name}: {problem.strerror}; this library does not resolve it, but Gloo does",
            "add it to /etc/hosts",
        )
    text = f"{name} is {', '.join(sorted(found))}"
    if all(map(launchers.is_loopback, found)):
        text += ", which is harmless: addresses are taken from the interfaces"
    return Finding(OK, text)
