"""The backend "ccl" of torch.distributed: collective communication on CPUs.

    import torch.distributed as dist
    import torch_ccl  # under torchrun optional: torch finds the backend by itself

    dist.init_process_group("ccl")

There are two ways in. Somebody imports this module: the extension is loaded, the backend registered
and what the launcher said about rank and size completed in os.environ. Or torch does, at the end of
`import torch`, through the entry point `torch.backends`: then only a name is registered, and the
rest happens when a group is made, of ranks that torch has brought together by what is set already.
"""

import os
import sys
from pathlib import Path

__all__ = [
    "DistEnv",
    "ProcessGroupCCL",
    "__version__",
    "cwd",
    "empty",
    "get_dist_env",
    "init",
    "monitored_barrier",
    "operation_count",
    "replace",
    "replaced",
    "restore",
    "settings",
]

#: Where the package lives; `cwd/env/setvars.sh` prepares a shell for C++ programs.
cwd = str(Path(__file__).resolve().parent)

_SUPPORTED_TORCH = "2.13"


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "_initializing", False)


def _is_supported(torch_version: str) -> bool:
    return torch_version.startswith(_SUPPORTED_TORCH + ".")


def _device_types() -> list[str]:
    """Those of Intel's package, and what CCL_DEVICES names."""
    more = os.environ.get("CCL_DEVICES", "").lower().replace(",", " ").split()
    return list(dict.fromkeys(("cpu", "xpu", *more)))


def _create(group, options):
    """Make the backend of one group; torch.distributed calls this."""
    from torch_ccl import _C, accelerators

    accelerators.check_device_types(_device_types())
    backend = _C.create(group, options)
    accelerators.hand_over(backend, group)
    return backend


def _register() -> None:
    from torch.distributed import Backend

    if "ccl" not in Backend.backend_list:
        Backend.register_backend("ccl", _create, extended_api=True, devices=_device_types())


def _replace_as_asked() -> None:
    if os.environ.get("CCL_REPLACE"):
        from torch_ccl import replacing

        replacing.replace_as_asked()


def _autoload() -> None:
    """Register the name; torch calls this. It must not fail: `import torch` would fail with it."""
    import torch

    if _is_supported(torch.__version__) and torch.distributed.is_available():
        _register()
        _replace_as_asked()
    if _imported_by_torch:
        # Somebody who imports us later gets the module with all that belongs to it.
        sys.modules.pop(__name__, None)


_imported_by_torch = _is_being_imported("torch")

if not _imported_by_torch:
    import atexit
    import importlib.metadata

    import torch

    __version__ = importlib.metadata.version("torch-ccl")
    if not _is_supported(torch.__version__):
        raise ImportError(
            f"torch-ccl {__version__} works with torch {_SUPPORTED_TORCH}, "
            f"but torch {torch.__version__} is installed"
        )
    from torch_ccl import _C, launchers
    from torch_ccl._C import ProcessGroupCCL, operation_count
    from torch_ccl.barriers import monitored_barrier
    from torch_ccl.direct_calls import complete_direct_calls
    from torch_ccl.job import get_dist_env, init, settings
    from torch_ccl.launchers import DistEnv
    from torch_ccl.meeting_point import watch_rendezvous
    from torch_ccl.memory import empty
    from torch_ccl.replacing import replace, replaced, restore

    launchers.complete(os.environ)
    watch_rendezvous()
    complete_direct_calls(ProcessGroupCCL)
    torch.distributed.ProcessGroupCCL = ProcessGroupCCL  # where programs for Intel's package look
    _register()
    _replace_as_asked()
    # While the interpreter is whole: saying goodbye joins threads that may be running callbacks.
    atexit.register(_C._close)
