"""The key-value space of a job that hydra has started (MPICH, Intel MPI), by PMI-1 on PMI_FD.

    keys = KeySpace.of(os.environ)

One line is asked, one line is answered. The rules, tried with MPICH 4.0: a process that has said
`init` and ends without `finalize` is a crash, for which the launcher ends all others; after
`finalize` MPI_Init fails, after `init` it works. So this says `finalize` when the interpreter ends,
and not if MPI was initialised meanwhile, which then says it itself.
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
    """Asks the MPI library that this process has loaded, if it has one."""
    flag = ctypes.c_int(0)
    for path in loaded_libraries():
        if re.search(r"/libmpi\w*\.so", path):
            # One that was deleted meanwhile, or is no MPI, must not keep us from finalize.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(path).MPI_Initialized(ctypes.byref(flag))
        if flag.value:
            return True
    return False


def _is_socket(fd: int) -> bool:
    """The variable may have come through a launcher that closed the descriptor."""
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


class KeySpace:
    """Texts that one process of the job publishes and the others read, all at the same time."""

    _ours: "KeySpace | None" = None

    def __init__(self, fd: int):
        self._fd = fd
        self._received = b""
        if not mpi_is_initialized():
            self._ask("init pmi_version=1 pmi_subversion=1", "response_to_init")
            atexit.register(self._finalize)
        os.register_at_fork(after_in_child=self._forget)
        self._name = self._ask("get_my_kvsname", "my_kvsname")["kvsname"]

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "KeySpace | None":
        """None if the launcher offers none. One per process: there is one connection."""
        fd = environment.get("PMI_FD", "")
        if cls._ours is None and fd.isdecimal() and _is_socket(int(fd)):
            cls._ours = cls(int(fd))
        return cls._ours

    def publish(self, key: str, text: str, timeout_s: float) -> None:
        """Rank 0 says something; returns when all others ask for it. Raises TimeoutError."""
        self._ask(f"put kvsname={self._name} key={key} value={text}", "put_result")
        self._barrier(timeout_s)

    def read(self, key: str, timeout_s: float) -> str:
        """What rank 0 says. Raises TimeoutError if not all processes of the job come in time."""
        self._barrier(timeout_s)
        return self._ask(f"get kvsname={self._name} key={key}", "get_result")["value"]

    def _barrier(self, timeout_s: float) -> None:
        """What was put before it is seen after it."""
        self._ask("barrier_in", "barrier_out", timeout_s)

    def _ask(self, question: str, answer: str, timeout_s: float = 60) -> dict[str, str]:
        if self._fd < 0:
            raise PmiError("a forked child cannot speak to the launcher of its parent")
        os.write(self._fd, f"cmd={question}\n".encode())
        words = dict(
            word.partition("=")[::2] for word in self._line(time.monotonic() + timeout_s).split()
        )
        if words.get("cmd") != answer or words.get("rc", "0") != "0":
            raise PmiError(f"the launcher answers {words} to {question!r}")
        return words

    def _line(self, deadline: float) -> str:
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise TimeoutError("the launcher does not answer")
            piece = os.read(self._fd, 4096)
            if not piece:
                raise PmiError("the launcher has gone")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def _finalize(self) -> None:
        if self._fd >= 0 and not mpi_is_initialized():
            self._ask("finalize", "finalize_ack")

    def _forget(self) -> None:
        """A child that outlives this process must not keep its connection."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
