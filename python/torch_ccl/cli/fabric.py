"""What libfabric says of itself.

    look_up()  # {"version": "1.17", "providers": ["tcp", ...]} or {"problem": "..."}

The library is asked by another process, which runs this file: providers have threads and exit
handlers, and one that crashes or takes for ever must not harm whoever asks.
"""

import ctypes
import json
import subprocess
import sys

BOUND_S = 20


class FabricAttributes(ctypes.Structure):
    """The beginning of `struct fi_fabric_attr`."""

    _fields_ = (
        ("fabric", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("provider", ctypes.c_char_p),
    )


class FabricInfo(ctypes.Structure):
    """The beginning of `struct fi_info`."""


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


def ask_library() -> dict:
    try:
        library = ctypes.CDLL("libfabric.so.1")
    except OSError as problem:
        return {"problem": str(problem)}
    version = library.fi_version()
    first = ctypes.POINTER(FabricInfo)()
    library.fi_getinfo(version, None, None, ctypes.c_uint64(0), None, ctypes.byref(first))
    providers = []
    while first:
        providers.append(first.contents.fabric_attr.contents.provider.decode())
        first = first.contents.next
    return {
        "version": f"{version >> 16}.{version & 0xFFFF}",
        "providers": sorted(set(providers)),
    }


def look_up() -> dict:
    words = [sys.executable, "-I", "-S", __file__]
    try:
        asked = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND_S, check=True
        )
    except subprocess.SubprocessError as problem:
        return {"problem": f"libfabric does not answer: {problem}"}
    return json.loads(asked.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(ask_library()))
