"""What every check uses: its result, and the machine that it looks at."""

import os
import platform
import resource
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch_ccl import launchers, libtccl
from torch_ccl.agent.cores import ROOT
from torch_ccl.child_environment import usable_cpus
from torch_ccl.cli import fabric
from torch_ccl.cli.machine import online_cpus

OK, WARNING, PROBLEM = "ok", "warning", "problem"
MIB, GIB = 1 << 20, 1 << 30


class Finding(NamedTuple):
    level: str
    found: str
    advice: str = ""


def call_kernel() -> None:
    """Raises OSError if the kernel or a seccomp filter refuses a system call that we need."""
    os.close(os.memfd_create("torch-ccl", os.MFD_CLOEXEC))
    os.close(os.pidfd_open(os.getpid()))


def soft_limit(resource_id: int) -> int:
    return resource.getrlimit(resource_id)[0]


@dataclass
class Machine:
    """Everything that the checks read; a test replaces parts of it."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = ROOT
    allowed: list[int] = field(default_factory=usable_cpus)
    release: str = field(default_factory=platform.release)
    host_name: str = field(default_factory=socket.gethostname)
    soft_limit: Callable[[int], int] = soft_limit
    call_kernel: Callable[[], None] = call_kernel
    query_libfabric: Callable[[], dict[str, Any]] = fabric.query
    addresses: Callable[[], list[str]] = libtccl.host_addresses
    settings_table: Callable[[], libtccl.SettingsTable] = libtccl.settings_table
    library_info: Callable[[], libtccl.Info] = libtccl.info

    @cached_property
    def rank_info(self) -> launchers.RankInfo | None:
        return launchers.detect(self.environment)

    @property
    def local_ranks(self) -> int:
        """The number of ranks on this host; 1 if no launcher sets it."""
        return (self.rank_info.local_size or 1) if self.rank_info else 1

    @property
    def provider(self) -> str:
        get = self.environment.get
        return get("CCL_ATL_PROVIDER") or get("FI_PROVIDER") or "tcp"

    def online(self) -> list[int]:
        return online_cpus(self.root)
