"""Calls of the C functions of libtccl.so (src/info/info_json.h). Does not need torch."""

import ctypes
import functools
import json
from pathlib import Path
from typing import Any, TypedDict, cast

from torch_ccl import installed_files


class Error(RuntimeError):
    """The library reports an error, such as a setting with an invalid value."""


class LoadError(RuntimeError):
    """The library is missing, or a library that it needs is."""


class Setting(TypedDict):
    name: str
    value: str
    doc: str
    is_set: bool  # in the environment


class OtherVariable(TypedDict):
    """A CCL_* variable that the library knows and does not read."""

    name: str  # or a prefix: CCL_ZE_*
    default: str  # of an ignored one oneCCL's
    doc: str
    is_ignored: bool  # oneCCL's, without effect; False: read elsewhere, or always the case


class SettingsTable(TypedDict):
    settings: list[Setting]
    other_variables: list[OtherVariable]


class AlgorithmRule(TypedDict):
    operation: str
    algorithm: str
    doc: str
    from_bytes: int
    to_bytes: int
    from_ranks: int
    dtypes: str
    several_hosts: bool
    by_setting: bool
    applies: bool  # false: the algorithm has no rule, so it runs only if a setting names it


class Info(TypedDict):
    kernels: str
    algorithms: list[AlgorithmRule]
    settings: list[Setting]


def _path() -> Path:
    path = installed_files.find("lib/libtccl.so")
    if path is None:
        raise LoadError("torch-ccl is not installed completely: lib/libtccl.so is missing")
    return path


@functools.cache
def load() -> ctypes.CDLL:
    """Load our library, once. Raises LoadError."""
    path = _path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as problem:
        raise LoadError(f"cannot load {path}: {problem}") from None


def _call(name: str) -> dict[str, Any]:
    function = getattr(load(), name)
    function.restype = ctypes.c_char_p
    text = cast(bytes, function()).decode(errors="surrogateescape")
    result = cast(dict[str, Any], json.loads(text))
    if "error" in result:
        raise Error(result["error"])
    return result


def settings_table() -> SettingsTable:
    """Every setting with its value as written, valid or not."""
    return cast(SettingsTable, _call("tccl_settings_json"))


def info() -> Info:
    """What the library would do with this environment. Raises Error for an invalid setting."""
    return cast(Info, _call("tccl_info_json"))


def host_addresses() -> list[str]:
    """Addresses at which other hosts reach this one, best first. Raises Error if there are none."""
    return cast(list[str], _call("tccl_host_addresses_json")["addresses"])
