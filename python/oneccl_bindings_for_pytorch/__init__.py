"""The same as torch_ccl, under the name that later releases of Intel's package had."""

from torch_ccl import (
    DistEnv,
    ProcessGroupCCL,
    __version__,
    cwd,
    empty,
    get_dist_env,
    init,
    monitored_barrier,
    settings,
)

__all__ = [
    "DistEnv",
    "ProcessGroupCCL",
    "__version__",
    "cwd",
    "empty",
    "get_dist_env",
    "init",
    "monitored_barrier",
    "settings",
]
