"""Programs that say "gloo" or "mpi" get ccl: torch makes our backend where it would make theirs.

    CCL_REPLACE=gloo python serve.py        # or, in Python: torch_ccl.replace("gloo")

While a backend is replaced, the class that torch.distributed makes its groups from is one of ours,
which returns a ProcessGroupCCL. So every way leads to it: backend="gloo", no backend at all,
"cpu:gloo", new_group(), init_device_mesh(), and programs that call ProcessGroupGloo themselves.
Names stay as they are: get_backend() says "gloo", and whoever branches on it or asks for
isinstance(backend, ProcessGroupGloo) takes the way that he took before.

Imported by the entry point at the end of `import torch`, so it loads the extension only when a
group is made.
"""

import os
import sys
from collections.abc import Callable
from types import ModuleType

import torch.distributed as dist
from torch._C import _distributed_c10d as bindings
from torch.distributed import distributed_c10d


def replace(*names: str) -> None:
    """Serve the groups of these backends, "gloo" and "mpi", that are made from now on.

    Raises ValueError, and replaces none, if one cannot be replaced.
    """
    wanted = _checked(names)
    if "gloo" in wanted and not dist.is_gloo_available():
        raise ValueError("this torch has no Gloo whose place torch-ccl could take")
    for name in wanted:
        if name not in _undo:
            _undo[name] = _REPLACEMENTS[name]()


def restore(*names: str) -> None:
    """Give these backends back, or all that were replaced. Groups that exist stay as they are."""
    for name in _checked(names) or list(_undo):
        if undo := _undo.pop(name, None):
            undo()


def replaced() -> tuple[str, ...]:
    """Names of the backends that are replaced now."""
    return tuple(_undo)


def _checked(names) -> tuple[str, ...]:
    lowered = tuple(name.lower() for name in names)
    for name in lowered:
        if name not in _REPLACEMENTS:
            raise ValueError(
                f"torch-ccl can take the place of {' and '.join(_REPLACEMENTS)}, not of {name!r}"
            )
    return lowered


# ---- names in torch's modules

_ABSENT = object()


def _set_attributes(new: dict[tuple[ModuleType, str], object]) -> Callable[[], None]:
    """Returns what puts them back as they were."""
    before = {place: getattr(*place, _ABSENT) for place in new}
    for (module, name), value in new.items():
        setattr(module, name, value)

    def put_back() -> None:
        for (module, name), value in before.items():
            if value is _ABSENT:
                delattr(module, name)
            else:
                setattr(module, name, value)

    return put_back


# ---- gloo


def _make(backend: str, store, rank: int, size: int, timeout):
    from torch_ccl import ProcessGroupCCL

    # torch says only later how it calls the group; for messages any name will do.
    return ProcessGroupCCL(store, rank, size, timeout, name=backend, backend=backend)


def _stands_for(backend: str, group: object) -> bool:
    extension = sys.modules.get("torch_ccl._C")  # a question alone does not load it
    is_ours = extension is not None and isinstance(group, extension.ProcessGroupCCL)
    return is_ours and group.options.backend == backend


def _substitute_for(gloo: type) -> type:
    """A class to be called as ProcessGroupGloo is; what else that has, this has too."""

    def make_ours(store, rank, size, options=None, timeout=None):
        if isinstance(options, gloo._Options):
            timeout = options._timeout
        elif options is not None:  # by position, the fourth may also be the timeout
            timeout = options
        return _make("gloo", store, rank, size, timeout or dist.default_pg_timeout)

    class Substitute(type):
        def __new__(meta, name, bases, namespace):
            if bases:  # its objects would be ProcessGroupCCL and have nothing of it
                raise TypeError(
                    f"{name} cannot be made from {gloo.__name__} while that is replaced by "
                    "torch-ccl; torch_ccl.restore() gives torch's own class back"
                )
            return super().__new__(meta, name, bases, namespace)

        def __call__(cls, *args, **kwargs):
            # Somebody may have kept the name beyond restore().
            make = make_ours if "gloo" in _undo else gloo
            return make(*args, **kwargs)

        def __instancecheck__(cls, instance):
            return isinstance(instance, gloo) or _stands_for("gloo", instance)

        def __subclasscheck__(cls, subclass):
            return subclass is cls or issubclass(subclass, gloo)

        def __getattr__(cls, name):
            return getattr(gloo, name)

    own = {"__module__": gloo.__module__, "__doc__": gloo.__doc__, "__wrapped__": gloo}
    return Substitute(gloo.__name__, (), own)


def _replace_gloo() -> Callable[[], None]:
    substitute = _substitute_for(bindings.ProcessGroupGloo)
    places = (bindings, distributed_c10d, dist)
    return _set_attributes({(place, "ProcessGroupGloo"): substitute for place in places})


# ---- mpi, which torch's wheel does not have


class _Mpi:
    """The class ProcessGroupMPI as far as torch.distributed uses it.

    torch gives it no rank, size or store: MPI knows them. We ask the launcher, as for "ccl", and
    meet by env://; once per process, as with MPI.
    """

    def __init__(self):
        self._world = None
        self._times_made: dict[tuple[int, ...], int] = {}

    def create(self, ranks: list[int]):
        """Called by the members of a group; an empty list means all ranks."""
        store, rank, size = self._meet()
        key = tuple(ranks)
        number = self._times_made[key] = self._times_made.get(key, 0) + 1
        members = list(ranks) or list(range(size))
        place = f"mpi/{'-'.join(map(str, ranks)) or 'world'}/{number}/"
        store = dist.PrefixStore(place, store)
        timeout = dist.default_pg_timeout
        return _make("mpi", store, members.index(rank), len(members), timeout)

    def _meet(self) -> tuple[dist.Store, int, int]:
        if self._world is None:
            import torch_ccl

            if torch_ccl.get_dist_env().launcher == "none":
                self._world = dist.HashStore(), 0, 1  # a process without a launcher is alone
            else:
                self._world = next(dist.rendezvous("env://"))
        return self._world


_mpi = _Mpi()  # one, as there is one MPI: it has met the others once


def _replace_mpi() -> Callable[[], None]:
    return _set_attributes(
        {
            (distributed_c10d, "ProcessGroupMPI"): _mpi,
            (distributed_c10d, "_MPI_AVAILABLE"): True,
        }
    )


_REPLACEMENTS: dict[str, Callable[[], Callable[[], None]]] = {
    "gloo": _replace_gloo,
    "mpi": _replace_mpi,
}
_undo: dict[str, Callable[[], None]] = {}


def replace_as_asked() -> None:
    """What the entry point does. Raises nothing: `import torch` would fail with it."""
    try:
        replace(*os.environ.get("CCL_REPLACE", "").replace(",", " ").split())
    except Exception as problem:
        _warn(f"CCL_REPLACE: {problem}; nothing is replaced")


def _warn(message: str) -> None:
    import warnings

    try:
        warnings.warn(message, stacklevel=3)
    except Exception:  # whoever makes errors of warnings shall still have torch
        print(message, file=sys.stderr)
