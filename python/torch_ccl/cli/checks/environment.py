"""Checks of the environment: settings, rank and size, the store's port."""

import socket

from torch_ccl import launchers, libtccl
from torch_ccl.cli.checks.finding import OK, PROBLEM, WARNING, Finding, Machine
from torch_ccl.cli.host_agent import is_this_host
from torch_ccl.cli.settings import ignored_settings, unknown_settings


def check_settings(machine: Machine) -> Finding:
    try:
        rows = machine.library_info()["settings"]
    except libtccl.Error as problem:
        advice = "correct it, or unset it: then torch-ccl info shows the default"
        return Finding(PROBLEM, str(problem), advice)
    set_by_user = [row["name"] for row in rows if row["is_set"]]
    return Finding(OK, f"set: {', '.join(set_by_user)}" if set_by_user else "all are defaults")


def check_ignored_settings(machine: Machine) -> Finding:
    ignored = ignored_settings(machine.environment, machine.settings_table())
    if not ignored:
        return Finding(OK, "all that are set have an effect")
    reasons = [f"{name} ({doc.rstrip('.')})" for name, doc in ignored.items()]
    return Finding(OK, f"without effect: {', '.join(reasons)}")


def check_unknown_settings(machine: Machine) -> Finding:
    unknown = unknown_settings(machine.environment, machine.settings_table())
    if not unknown:
        return Finding(OK, "none")
    advice = [f"{nearest} instead of {name}?" for name, nearest in unknown.items() if nearest]
    advice = [*advice, "torch-ccl info lists the settings"]
    return Finding(WARNING, f"{', '.join(unknown)}: ignored", " ".join(advice))


def check_rank_variables(machine: Machine) -> Finding:
    try:
        launchers.validate_rank_variables(machine.environment)
    except ValueError as problem:
        found, _, advice = str(problem).partition(": ")
        return Finding(PROBLEM, found, advice or "correct RANK and WORLD_SIZE, or unset both")
    info = machine.rank_info
    if info is None:
        return Finding(OK, "no launcher has started this process")
    return Finding(OK, f"rank {info.rank} of {info.size}, from {info.launcher}")


def can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError:
            return False
    return True


def check_master(machine: Machine) -> Finding:
    address = machine.environment.get("MASTER_ADDR", "")
    port = machine.environment.get("MASTER_PORT", "")
    if not port:
        return Finding(OK, "MASTER_PORT is not set")
    where = f"MASTER_ADDR={address} MASTER_PORT={port}"
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return Finding(PROBLEM, where, "set MASTER_PORT to a number between 1 and 65535")
    if machine.environment.get("RANK", "0") != "0" or not is_this_host(address or "localhost"):
        return Finding(OK, f"{where}: rank 0 is expected to listen there")
    if not can_listen(int(port)):
        return Finding(PROBLEM, f"{where}: the port is in use", "set MASTER_PORT to another one")
    return Finding(OK, f"{where}: the port is free")
