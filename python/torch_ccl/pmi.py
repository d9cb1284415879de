"""The key-value space of a job started by hydra (MPICH, Intel MPI): a PMI-1 client on PMI_FD.

    kvs = KeyValueSpace.of(os.environ)

PMI-1 is one line per request and one per reply. Observed with MPICH 4.0: a process that has sent
`init` and ends without `finalize` counts as crashed, and the launcher kills the job; after
`finalize` MPI_Init fails, after `init` it works. So this client sends `finalize` when the
interpreter ends, unless MPI was initialised in the meantime: then MPI_Finalize sends it.
"""

import atexit
import contextlib
import ctypes
import os
import re
import select
import stat
import time
from collections.abc import Mapping

from torch_ccl.loaded_libraries import loaded_libraries


class PmiError(RuntimeError):
    pass


def mpi_is_initialized() -> bool:
    """Whether an MPI library that this process has loaded is initialised."""
    flag = ctypes.c_int(0)
    for path in loaded_libraries():
        if re.search(r"/libmpi\w*\.so", path):
            # A deleted file or another library of that name must not prevent `finalize`.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(path).MPI_Initialized(ctypes.byref(flag))
        if flag.value:
            return True
    return False


def _is_socket(fd: int) -> bool:
    """False if PMI_FD was inherited through a launcher that closed the descriptor."""
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


class KeyValueSpace:
    """Texts that rank 0 puts and the other ranks get; put and get synchronise all ranks."""

    _instance: "KeyValueSpace | None" = None

    def __init__(self, fd: int):
        self._fd = fd
        self._received = b""
        if not mpi_is_initialized():
            self._request("init pmi_version=1 pmi_subversion=1", "response_to_init")
            atexit.register(self._finalize)
        os.register_at_fork(after_in_child=self._close_in_child)
        self._name = self._value("get_my_kvsname", "my_kvsname", "kvsname")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "KeyValueSpace | None":
        """The one of this process, as there is one connection; None if the launcher offers none."""
        fd = environment.get("PMI_FD", "")
        if cls._instance is None and fd.isdecimal() and _is_socket(int(fd)):
            cls._instance = cls(int(fd))
        return cls._instance

    def put(self, key: str, text: str, timeout_s: float) -> None:
        """Call it on rank 0. Returns when all other ranks call get(). Raises TimeoutError."""
        self._request(f"put kvsname={self._name} key={key} value={text}", "put_result")
        self._barrier(timeout_s)

    def get(self, key: str, timeout_s: float) -> str:
        """Call it on the other ranks. Raises TimeoutError if a rank of the job is missing."""
        self._barrier(timeout_s)
        return self._value(f"get kvsname={self._name} key={key}", "get_result", "value")

    def _barrier(self, timeout_s: float) -> None:
        """A put before the barrier is visible to a get after it."""
        self._request("barrier_in", "barrier_out", timeout_s)

    def _value(self, command: str, reply: str, name: str) -> str:
        fields = self._request(command, reply)
        if name not in fields:
            raise PmiError(f"the launcher replied {fields} to {command!r}")
        return fields[name]

    def _request(self, command: str, reply: str, timeout_s: float = 60) -> dict[str, str]:
        if self._fd < 0:
            raise PmiError("a forked child cannot use its parent's connection to the launcher")
        os.write(self._fd, f"cmd={command}\n".encode())
        fields: dict[str, str] = {}
        for word in self._read_line(time.monotonic() + timeout_s).split():
            name, _, value = word.partition("=")
            fields[name] = value
        if fields.get("cmd") != reply or fields.get("rc", "0") != "0":
            raise PmiError(f"the launcher replied {fields} to {command!r}")
        return fields

    def _read_line(self, deadline: float) -> str:
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._fd], [], [], left_s)[0]:
                raise TimeoutError("the launcher does not reply")
            data = os.read(self._fd, 4096)
            if not data:
                raise PmiError("the launcher has closed the connection")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode(errors="replace")

    def _finalize(self) -> None:
        if self._fd >= 0 and not mpi_is_initialized():
            self._request("finalize", "finalize_ack")

    def _close_in_child(self) -> None:
        """A child that outlives this process must not keep the connection open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
