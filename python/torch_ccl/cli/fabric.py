"""Version and providers of libfabric on this host.

    query()  # {"version": "1.17", "providers": ["tcp", ...]} or {"problem": "..."}

A child process, which runs this file, calls libfabric: providers have threads and exit handlers,
and one that crashes or hangs must not affect the caller.
"""

import ctypes
import json
import subprocess
import sys
from typing import Any

TIMEOUT_S = 20


class FabricAttributes(ctypes.Structure):
    """The first members of `struct fi_fabric_attr`."""

    _fields_ = (
        ("fabric", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("provider", ctypes.c_char_p),
    )


class FabricInfo(ctypes.Structure):
    """The first members of `struct fi_info`."""


FabricInfo._fields_ = (
    ("next", ctypes.POINTER(FabricInfo)),
    ("caps", ctypes.c_uint64),
    ("mode", ctypes.c_uint64),
    ("addr_format", ctypes.c_uint32),
    ("src_addrlen", ctypes.c_size_t),
    ("dest_addrlen", ctypes.c_size_t),
    ("src_addr", ctypes.c_void_p),
    ("dest_addr", ctypes.c_void_p),
    ("handle", ctypes.c_void_p),
    ("tx_attr", ctypes.c_void_p),
    ("rx_attr", ctypes.c_void_p),
    ("ep_attr", ctypes.c_void_p),
    ("domain_attr", ctypes.c_void_p),
    ("fabric_attr", ctypes.POINTER(FabricAttributes)),
)


def call_libfabric() -> dict[str, Any]:
    try:
        library = ctypes.CDLL("libfabric.so.1")
    except OSError as problem:
        return {"problem": str(problem)}
    version = library.fi_version()
    entry = ctypes.POINTER(FabricInfo)()
    library.fi_getinfo(version, None, None, ctypes.c_uint64(0), None, ctypes.byref(entry))
    providers = []
    while entry:
        providers.append(entry.contents.fabric_attr.contents.provider.decode())
        entry = entry.contents.next
    return {
        "version": f"{version >> 16}.{version & 0xFFFF}",
        "providers": sorted(set(providers)),
    }


def query() -> dict[str, Any]:
    command = [sys.executable, "-I", "-S", __file__]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.SubprocessError as problem:
        return {"problem": f"libfabric does not respond: {problem}"}
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    print(json.dumps(call_libfabric()))
