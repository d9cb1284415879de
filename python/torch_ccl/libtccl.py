"""Calls of the C functions of libtccl.so (src/info/info_json.h). Does not need torch."""

import ctypes
import functools
import importlib.util
import json
from pathlib import Path
from typing import Any, TypedDict, cast


class Error(RuntimeError):
    """The library reports an error, such as a setting with an invalid value."""


class Setting(TypedDict):
    name: str
    value: str
    doc: str
    is_set: bool  # in the environment


class SettingsTable(TypedDict):
    settings: list[Setting]
    package_variables: list[str]  # CCL_* variables that the library ignores


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


class Info(TypedDict):
    kernels: str
    algorithms: list[AlgorithmRule]
    settings: list[Setting]


def _path() -> Path:
    """Beside the extension; in an editable installation the Python files are elsewhere."""
    extension = importlib.util.find_spec("torch_ccl._C")
    if extension is None or extension.origin is None:
        raise Error("torch_ccl is not installed: its extension torch_ccl._C is missing")
    return Path(extension.origin).parent / "lib/libtccl.so"


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(_path()))


def _call(name: str) -> dict[str, Any]:
    function = getattr(_library(), name)
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
