"""Use ccl for groups of backend "gloo" or "mpi", without changing the program.

    CCL_REPLACE=gloo python serve.py        # or, in Python: torch_ccl.replace("gloo")

While a backend is replaced, the class from which torch.distributed creates its groups is a
substitute that returns a ProcessGroupCCL. This covers backend="gloo", no backend at all,
"cpu:gloo", new_group(), init_device_mesh(), and programs that call ProcessGroupGloo directly. Names
do not change: get_backend() returns "gloo", and isinstance(backend, ProcessGroupGloo) is true.

The entry point imports this module at the end of `import torch`, so the extension is loaded only
when a group is created.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch._C import _distributed_c10d as bindings
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from torch_ccl import ProcessGroupCCL


def replace(*names: str) -> None:
    """Use ccl for groups of these backends, "gloo" and "mpi", that are created from now on.

    Raises ValueError, and replaces none, if one of them cannot be replaced.
    """
    backends = _validated(names)
    if "gloo" in backends and not dist.is_gloo_available():
        raise ValueError("this torch has no Gloo that torch-ccl could replace")
    for name in backends:
        if name not in _undo:
            _undo[name] = _REPLACE[name]()


def restore(*names: str) -> None:
    """Undo replace() for these backends, or for all. Existing groups do not change."""
    for name in _validated(names) or list(_undo):
        if undo := _undo.pop(name, None):
            undo()


def replaced() -> tuple[str, ...]:
    """Names of the backends that are replaced now."""
    return tuple(_undo)


def _validated(names: tuple[str, ...]) -> tuple[str, ...]:
    lowered = tuple(name.lower() for name in names)
    for name in lowered:
        if name not in _REPLACE:
            raise ValueError(f"torch-ccl can replace {' and '.join(_REPLACE)}, not {name!r}")
    return lowered


# ---- attributes of torch's modules

_ABSENT = object()


def set_attributes(new: dict[tuple[ModuleType, str], object]) -> Callable[[], None]:
    """Set attributes; returns a function that restores the earlier values."""
    before = {target: getattr(*target, _ABSENT) for target in new}
    for (module, name), value in new.items():
        setattr(module, name, value)

    def undo() -> None:
        for (module, name), value in before.items():
            if value is _ABSENT:
                delattr(module, name)
            else:
                setattr(module, name, value)

    return undo


# ---- gloo


def _create(
    backend: str, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> "ProcessGroupCCL":
    from torch_ccl import ProcessGroupCCL
    from torch_ccl.torch_versions import name_of_new_group

    name = name_of_new_group() or backend
    return ProcessGroupCCL(store, rank, size, timeout, name=name, backend=backend)


def _is_substitute_for(backend: str, group: Any) -> bool:
    extension = sys.modules.get("torch_ccl._C")  # isinstance() must not load the extension
    is_ours = extension is not None and isinstance(group, extension.ProcessGroupCCL)
    return is_ours and group.options.backend == backend


def _substitute_for(gloo: Any) -> type:
    """A class with the constructor and the attributes of ProcessGroupGloo."""

    def create_ours(
        store: dist.Store,
        rank: int,
        size: int,
        options: Any = None,
        timeout: Any = None,
        **_of_gloo_alone: Any,  # enable_reconfigure in torch 2.14
    ) -> "ProcessGroupCCL":
        if isinstance(options, gloo._Options):
            timeout = options._timeout
        elif options is not None:  # the fourth positional argument may also be the timeout
            timeout = options
        return _create("gloo", store, rank, size, timeout or distributed_c10d.default_pg_timeout)

    class Substitute(type):
        def __new__(
            meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
        ) -> "Substitute":
            if bases:  # instances would be ProcessGroupCCL, without the subclass's methods
                raise TypeError(
                    f"{name} cannot inherit from {gloo.__name__} while that is replaced by "
                    "torch-ccl; torch_ccl.restore() restores torch's own class"
                )
            return super().__new__(meta, name, bases, namespace)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            # A program may have kept this class beyond restore().
            create = create_ours if "gloo" in _undo else gloo
            return create(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, gloo) or _is_substitute_for("gloo", instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return subclass is cls or issubclass(subclass, gloo)

        def __getattr__(cls, name: str) -> Any:
            return getattr(gloo, name)

    attributes = {"__module__": gloo.__module__, "__doc__": gloo.__doc__, "__wrapped__": gloo}
    return Substitute(gloo.__name__, (), attributes)


def _replace_gloo() -> Callable[[], None]:
    substitute = _substitute_for(bindings.ProcessGroupGloo)
    modules = (bindings, distributed_c10d, dist)
    return set_attributes({(module, "ProcessGroupGloo"): substitute for module in modules})


# ---- mpi, which torch's wheels do not include


class _ProcessGroupMPI:
    """The part of the class ProcessGroupMPI that torch.distributed uses.

    torch passes no rank, size or store, because MPI knows them. Here they come from the launcher,
    through one env:// rendezvous per process.
    """

    def __init__(self) -> None:
        self._world: tuple[dist.Store, int, int] | None = None
        self._group_counts: dict[tuple[int, ...], int] = {}

    def create(self, ranks: list[int]) -> "ProcessGroupCCL":
        """Called by the members of a group; an empty list means all ranks."""
        store, rank, size = self._rendezvous()
        key = tuple(ranks)
        number = self._group_counts[key] = self._group_counts.get(key, 0) + 1
        members = list(ranks) or list(range(size))
        prefix = f"mpi/{'-'.join(map(str, ranks)) or 'world'}/{number}/"
        timeout = distributed_c10d.default_pg_timeout
        group_store = dist.PrefixStore(prefix, store)
        return _create("mpi", group_store, members.index(rank), len(members), timeout)

    def _rendezvous(self) -> tuple[dist.Store, int, int]:
        if self._world is None:
            import torch_ccl

            if torch_ccl.get_dist_env().launcher == "none":
                self._world = dist.HashStore(), 0, 1
            else:
                self._world = next(dist.rendezvous("env://"))
        return self._world


_process_group_mpi = _ProcessGroupMPI()  # one per process, as MPI is


def _replace_mpi() -> Callable[[], None]:
    return set_attributes(
        {
            (distributed_c10d, "ProcessGroupMPI"): _process_group_mpi,
            (distributed_c10d, "_MPI_AVAILABLE"): True,
        }
    )


_REPLACE: dict[str, Callable[[], Callable[[], None]]] = {
    "gloo": _replace_gloo,
    "mpi": _replace_mpi,
}
_undo: dict[str, Callable[[], None]] = {}


def replace_from_environment() -> None:
    """Replace the backends in CCL_REPLACE. Never raises: `import torch` would fail."""
    try:
        replace(*os.environ.get("CCL_REPLACE", "").replace(",", " ").split())
    except Exception as problem:
        _warn(f"CCL_REPLACE: {problem}; nothing is replaced")


def _warn(message: str) -> None:
    import warnings

    try:
        warnings.warn(message, stacklevel=3)
    except Exception:  # with warnings as errors, `import torch` must still succeed
        print(message, file=sys.stderr)
