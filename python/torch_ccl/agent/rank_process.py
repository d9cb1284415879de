"""A rank as its agent sees it: a process in a session of its own, and two streams of lines."""

import contextlib
import ctypes
import os
import signal
import subprocess
from functools import partial

PR_SET_PDEATHSIG = 1
COULD_NOT_START = 127  # as shells say it
PIECE = 1 << 16
PIPE_LIMIT = 1 << 20  # what the kernel may hold of a stream

_libc = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the one that started it is gone; in fact when the
    thread is that started it, which therefore has to wait for the end of this process."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _prepare(agent: int, cpus: list[int]) -> None:
    """In the new process. The agent has one thread, so this may be Python."""
    end_with(agent)
    if cpus:
        with contextlib.suppress(OSError):  # somebody has taken them from us meanwhile
            os.sched_setaffinity(0, cpus)


class Lines:
    """A stream of a rank, read as whole lines."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.ended = False
        self._begun: list[bytes] = []

    def read(self) -> bytes:
        """What is there of whole lines, or nothing; at the end also a line that nobody ended."""
        try:
            piece = os.read(self.fd, PIECE)
        except BlockingIOError:
            return b""
        if not piece:
            self.ended = True
            return self._finish()
        whole, newline, begun = piece.rpartition(b"\n")
        if not newline:
            self._begun.append(piece)
            return b""
        lines = b"".join([*self._begun, whole, newline])
        self._begun = [begun] if begun else []
        return lines

    def read_rest(self) -> bytes:
        """All that is in the pipe, without waiting: somebody else may hold its other end."""
        pieces = [self.read() for _ in range(PIPE_LIMIT // PIECE) if not self.ended]
        return b"".join([*pieces, self._finish()])

    def _finish(self) -> bytes:
        line = b"".join(self._begun)
        self._begun = []
        return line and line + b"\n"


class RankProcess:
    """Raises OSError if the program cannot be started."""

    def __init__(self, rank: int, words: list[str], environment: dict[str, str], cpus: list[int]):
        self.rank = rank
        self._process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(_prepare, os.getpid(), cpus),
        )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.stdout = Lines(self._process.stdout.fileno())
        self.stderr = Lines(self._process.stderr.fileno())

    def code(self) -> int:
        """Of a process that has ended; below 0 it is the signal that ended it. The process is not
        reaped, so that its number, which is that of its group, is not given to another one."""
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def signal_group(self, number: int) -> None:
        """The rank and what it has started, also if the rank itself has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
