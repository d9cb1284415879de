"""The backend "ccl" of torch.distributed: collective communication on CPUs.

    import torch.distributed as dist
    import torch_ccl  # optional: torch loads the backend's entry point by itself

    dist.init_process_group("ccl")

This module is imported in one of three ways:

1. By a program. It loads the extension, registers the backend and adds the launcher's rank and
   size to os.environ.
2. By torch, at the end of `import torch`, through the entry point group `torch.backends`. It only
   registers the backend's name; torch_ccl._C is loaded when the first group is created. The ranks
   then rendezvous through torch, with the variables that are set.
3. By the command `torch-ccl` (see torch_ccl_command). It does nothing until a public name is used.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

__all__ = [
    "DistEnv",
    "InvalidArgument",
    "ProcessGroupCCL",
    "__version__",
    "cwd",
    "empty",
    "fast_calls",
    "fast_calls_enabled",
    "get_dist_env",
    "init",
    "monitored_barrier",
    "operation_count",
    "replace",
    "replaced",
    "restore",
    "settings",
]

#: Directory of the package; `cwd/env/setvars.sh` prepares a shell for C++ programs.
cwd = str(Path(__file__).resolve().parent)


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "_initializing", False)


def _device_types() -> list[str]:
    """The devices that Intel's package serves, and those named in CCL_DEVICES."""
    named = os.environ.get("CCL_DEVICES", "").lower().replace(",", " ").split()
    return list(dict.fromkeys(("cpu", "xpu", *named)))


def _create_backend(group: Any, options: Any) -> "ProcessGroupCCL":
    """Create the backend of one group; torch.distributed calls this."""
    from torch_ccl import _C, accelerators, torch_versions

    accelerators.check_device_types(_device_types())
    backend = _C.create(group, options, torch_versions.name_of_new_group() or group.group_id)
    accelerators.attach_xccl(backend, group)
    return backend


def _register() -> None:
    from torch.distributed import Backend

    if "ccl" not in Backend.backend_list:
        from torch_ccl import torch_versions

        Backend.register_backend("ccl", _create_backend, extended_api=True, devices=_device_types())
        torch_versions.set_default_backends()


def _override_backends() -> None:
    if os.environ.get("CCL_REPLACE"):
        from torch_ccl import backend_override

        backend_override.replace_from_environment()


def _autoload() -> None:
    """The entry point `torch.backends` in pyproject.toml; torch calls it at the end of its import.

    It never raises: `import torch` would fail.
    """
    import torch

    try:
        if torch.distributed.is_available():
            _register()
            _override_backends()
    except Exception as problem:
        print(f"torch-ccl: the backend ccl is not available: {problem}", file=sys.stderr)
    if _imported_by_torch:
        # Case 2 of the module's docstring. Without this line a later `import torch_ccl` by the
        # program would find this half-initialised module; now it runs the module again, as case 1.
        for name in (__name__, f"{__name__}.torch_versions"):
            sys.modules.pop(name, None)


_imported_by_torch = _is_being_imported("torch")
_deferred = getattr(sys.modules.get("torch_ccl_command"), "defer_backend", False)

if TYPE_CHECKING or not (_imported_by_torch or _deferred):
    import atexit
    import importlib.metadata

    import torch

    __version__ = importlib.metadata.version("torch-ccl")
    from torch_ccl import environment, extension, launchers

    extension.load()
    from torch_ccl import _C as _C  # for programs that use torch_ccl._C
    from torch_ccl._C import InvalidArgument, ProcessGroupCCL, operation_count
    from torch_ccl.backend_override import replace, replaced, restore
    from torch_ccl.blocking_methods import make_methods_blocking
    from torch_ccl.environment import get_dist_env, init, settings
    from torch_ccl.fast_calls import enable_from_environment, fast_calls, fast_calls_enabled
    from torch_ccl.launchers import DistEnv
    from torch_ccl.memory import empty
    from torch_ccl.monitored_barrier import monitored_barrier
    from torch_ccl.rendezvous import install_rendezvous_handler

    launchers.export_rank_variables(os.environ)
    install_rendezvous_handler()
    make_methods_blocking(ProcessGroupCCL)
    # Programs written for Intel's package look for the class here.
    torch.distributed.ProcessGroupCCL = ProcessGroupCCL  # type: ignore[attr-defined]
    _register()
    _override_backends()
    enable_from_environment()
    # Before the interpreter shuts down: it joins threads that may be running Python callbacks.
    atexit.register(environment.close_at_exit)
    environment.remember_exit_status()
else:

    def __getattr__(name: str) -> object:
        """Load the whole module when the command first uses a name that needs torch."""
        if not _deferred or name not in (*__all__, "_C"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        sys.modules["torch_ccl_command"].defer_backend = False  # type: ignore[attr-defined]
        del globals()["__getattr__"]
        importlib.reload(sys.modules[__name__])
        return globals()[name]
