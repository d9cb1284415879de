"""The same as torch_ccl, under the name that later releases of Intel's package had."""

from torch_ccl import ProcessGroupCCL, __version__, cwd, empty, monitored_barrier

__all__ = ["ProcessGroupCCL", "__version__", "cwd", "empty", "monitored_barrier"]
