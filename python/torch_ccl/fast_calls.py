"""Fast calls: torch.distributed's functions without the time that torch adds to a small call.

    CCL_FAST_CALLS=1 python train.py        # or, in Python: torch_ccl.fast_calls()

Each function of torch.distributed is a wrapper that logs exceptions and calls the wrapped function,
which its closure holds. While fast calls are on, the closure holds a C function instead, which runs
a plain call at once and passes every other call to the wrapped function (binding/fast_calls.h). The
function that programs hold, compare, pickle and inspect stays the same object, so it does not
matter when it was imported, and torch.compile recognises it.

The functional collectives have no such wrapper. They are replaced in their module, where DTensor
looks them up.
"""

import contextlib
import functools
import os
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from torch_ccl import _C, torch_versions
from torch_ccl.backend_override import set_attributes

_FUNCTIONS = (
    "all_gather_into_tensor",
    "all_gather_single",  # from torch 2.13
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "recv",
    "reduce_scatter_single",  # from torch 2.13
    "reduce_scatter_tensor",
    "send",
)

_undo: list[Callable[[], None]] = []


def fast_calls(enable: bool = True) -> None:
    """Switch fast calls on, or off again, for the whole process."""
    if not enable:
        while _undo:
            _undo.pop()()
    elif not _undo:
        with contextlib.ExitStack() as undo_if_it_fails:
            for name in _FUNCTIONS:
                if function := getattr(distributed_c10d, name, None):
                    undo_if_it_fails.callback(_accelerate(name, function))
            undo_if_it_fails.callback(_replace_functional_collectives())
            _undo.append(undo_if_it_fails.pop_all().close)


def fast_calls_enabled() -> bool:
    """Whether fast calls are on."""
    return bool(_undo)


def enable_from_environment() -> None:
    value = os.environ.get("CCL_FAST_CALLS", "0").lower()
    if value in ("1", "true", "yes", "on"):
        fast_calls()
    elif value not in ("", "0", "false", "no", "off"):
        warnings.warn(f"CCL_FAST_CALLS={value} is ignored: it is 0 or 1", stacklevel=2)


# ---- the functions of torch.distributed


def _accelerate(name: str, wrapper: Any) -> Callable[[], None]:
    """Returns a function that undoes it. Does nothing if torch's wrapper is not what we know."""
    original = getattr(wrapper, "__wrapped__", None)
    cell = _cell_holding(original, wrapper)
    if original is None or cell is None:
        return lambda: None
    fast = _C._fast_call(name, original)
    # torch has deprecated two of the functions: their first call warns, as without fast calls.
    is_deprecated = hasattr(original, "__deprecated__")
    cell.cell_contents = _first_call(cell, original, fast) if is_deprecated else fast

    def undo() -> None:
        cell.cell_contents = original

    return undo


def _cell_holding(content: Any, function: Any) -> Any:
    """The cell of the function's closure that holds this object, or None."""
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            if cell.cell_contents is content:
                return cell
    return None


def _first_call(cell: Any, original: Callable[..., Any], fast: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if cell.cell_contents is call:
            cell.cell_contents = fast
        return original(*args, **kwargs)

    return call


# ---- the functional collectives
#
# Outside of torch.compile they return a plain tensor that is complete, not an
# AsyncCollectiveTensor. torch.compile traces the original.


def _group(group: Any) -> Any:
    """A process group or its name, for a mesh and a dimension; another argument as it is."""
    if isinstance(group, tuple | DeviceMesh):
        return torch_versions.resolve_group(group)
    return group


def _all_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def all_reduce(self: torch.Tensor, reduceOp: str, group: Any, tag: str = "") -> Any:
        if not is_dynamo_compiling():
            result = _C._fast_functional_all_reduce(self, reduceOp, _group(group))
            if result is not None:
                return result
        return original(self, reduceOp, group, tag)

    return all_reduce


def _broadcast(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def broadcast(self: torch.Tensor, src: int, group: Any, tag: str = "") -> Any:
        if not is_dynamo_compiling():
            result = _C._fast_functional_broadcast(self, src, _group(group))
            if result is not None:
                return result
        return original(self, src, group, tag)

    return broadcast


def _all_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def all_gather(self: torch.Tensor, gather_dim: int, group: Any, tag: str = "") -> Any:
        if not is_dynamo_compiling():
            result = _C._fast_functional_all_gather(self, gather_dim, _group(group))
            if result is not None:
                return result
        return original(self, gather_dim, group, tag)

    return all_gather


def _reduce_scatter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce_scatter(
        self: torch.Tensor, reduceOp: str, scatter_dim: int, group: Any, tag: str = ""
    ) -> Any:
        if not is_dynamo_compiling():
            result = _C._fast_functional_reduce_scatter(self, reduceOp, scatter_dim, _group(group))
            if result is not None:
                return result
        return original(self, reduceOp, scatter_dim, group, tag)

    return reduce_scatter


def _all_to_all(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def all_to_all(
        self: torch.Tensor,
        output_split_sizes: list[int] | None,
        input_split_sizes: list[int] | None,
        group: Any,
        tag: str = "",
    ) -> Any:
        has_splits = output_split_sizes is not None or input_split_sizes is not None
        if not has_splits and not is_dynamo_compiling():
            result = _C._fast_functional_all_to_all(self, _group(group))
            if result is not None:
                return result
        return original(self, output_split_sizes, input_split_sizes, group, tag)

    return all_to_all


_FUNCTIONAL = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_single": _all_gather,
    "reduce_scatter_single": _reduce_scatter,
    "all_to_all_single": _all_to_all,
}


def _replace_functional_collectives() -> Callable[[], None]:
    """Returns a function that undoes it."""
    from torch.distributed import _functional_collectives as module

    functions: dict[tuple[ModuleType, str], object] = {
        (module, name): replace(getattr(module, name))
        for name, replace in torch_versions.functional_names(_FUNCTIONAL).items()
    }
    return set_attributes(functions)
