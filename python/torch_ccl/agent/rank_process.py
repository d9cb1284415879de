"""A rank's process as its agent sees it: a session of its own and two streams of lines."""

import contextlib
import ctypes
import os
import signal
import subprocess
from functools import partial

PR_SET_PDEATHSIG = 1
COULD_NOT_START = 127  # the shell's exit code for it
READ_BYTES = 1 << 16
PIPE_LIMIT = 1 << 20  # largest capacity of a pipe

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies. The kernel acts when the *thread*
    that started this process ends, so that thread must wait for this process."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call above
        os._exit(1)


def _prepare_child(agent: int, cpus: list[int]) -> None:
    """Runs in the new process. The agent has one thread, so this may be Python code."""
    die_with_parent(agent)
    if cpus:
        with contextlib.suppress(OSError):  # the cpuset may have changed
            os.sched_setaffinity(0, cpus)


class LineReader:
    """A stream of a rank, read as whole lines."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.ended = False
        self._partial: list[bytes] = []

    def read(self) -> bytes:
        """Whole lines that are available, or nothing; at the end also an unterminated line."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self.ended = True
            return self._take_partial_line()
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._partial.append(data)
            return b""
        lines = b"".join([*self._partial, whole, newline])
        self._partial = [rest] if rest else []
        return lines

    def read_rest(self) -> bytes:
        """The pipe's content, without waiting for its end: another process may hold it open."""
        lines = [self.read() for _ in range(PIPE_LIMIT // READ_BYTES) if not self.ended]
        return b"".join([*lines, self._take_partial_line()])

    def _take_partial_line(self) -> bytes:
        line = b"".join(self._partial)
        self._partial = []
        return line and line + b"\n"


class RankProcess:
    """Raises OSError if the program cannot be started."""

    def __init__(self, rank: int, command: list[str], environment: dict[str, str], cpus: list[int]):
        self.rank = rank
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(_prepare_child, os.getpid(), cpus),
        )
        assert self._process.stdout and self._process.stderr
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.stdout = LineReader(self._process.stdout.fileno())
        self.stderr = LineReader(self._process.stderr.fileno())

    def exit_code(self) -> int:
        """The exit code of a process that has ended; negative: the signal that killed it. Does not
        reap the process: its pid, which is also its process group's, must not be reused yet."""
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def signal_group(self, number: int) -> None:
        """Signal the rank and its children, even if the rank itself has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
