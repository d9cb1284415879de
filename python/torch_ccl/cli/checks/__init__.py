"""The checks of `torch-ccl doctor`: one function per row of CHECKS.

A check gets a Machine, which a test can construct, and returns a Finding: what was found and, if
that is not ok, what to do.
"""

from collections.abc import Callable

from torch_ccl.cli.checks.cpus import check_cpus, check_threads, check_workers
from torch_ccl.cli.checks.environment import (
    check_ignored_settings,
    check_master,
    check_rank_variables,
    check_settings,
    check_unknown_settings,
)
from torch_ccl.cli.checks.finding import OK, PROBLEM, WARNING, Finding, Machine
from torch_ccl.cli.checks.network import (
    check_host_name,
    check_interfaces,
    check_libfabric,
    check_locked_memory,
)
from torch_ccl.cli.checks.self_test import check_two_ranks
from torch_ccl.cli.checks.system import (
    check_address_space,
    check_kernel,
    check_memory,
    check_ptrace,
)

__all__ = ["CHECKS", "OK", "PROBLEM", "WARNING", "Finding", "Machine"]

CHECKS: tuple[tuple[str, Callable[[Machine], Finding]], ...] = (
    ("kernel", check_kernel),
    ("ptrace", check_ptrace),
    ("memory", check_memory),
    ("address space", check_address_space),
    ("CPUs", check_cpus),
    ("threads", check_threads),
    ("workers", check_workers),
    ("libfabric", check_libfabric),
    ("locked memory", check_locked_memory),
    ("interfaces", check_interfaces),
    ("host name", check_host_name),
    ("settings", check_settings),
    ("oneCCL's variables", check_ignored_settings),
    ("unknown settings", check_unknown_settings),
    ("rank and size", check_rank_variables),
    ("rendezvous", check_master),
    ("two ranks", check_two_ranks),
)
