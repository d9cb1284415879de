"""Runs a function in one new process per rank of this host, and waits until all have ended.

    with SpawnedRanks(f, args) as ranks:
        ranks.start(tiles, port)
        exit_code = ranks.wait()

Each rank is in a session of its own and dies with this process. When one fails, the others get
FAILURE_GRACE_S to fail by themselves, then SIGTERM, then SIGKILL.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from torch_ccl.agent.cores import RankCpus
from torch_ccl.agent.rank_process import die_with_parent
from torch_ccl.child_environment import REMOVED_VARIABLES
from torch_ccl.exit_status import (
    FAILURE_GRACE_S,
    TERMINATE_GRACE_S,
    ExitStatus,
    ProcessId,
    StderrTail,
    root_cause,
)
from torch_ccl.launchers import LOOPBACK

REPORT_BYTES = 3072  # of a traceback; below PIPE_BUF, so that ranks' reports do not interleave


# ---- in the new processes


def _rank_main(
    rank: int, f: Callable[..., Any], args: tuple[Any, ...], parent: int, reports: Connection
) -> None:
    """Reports a failure at once: the process may take long to exit, and others fail meanwhile."""
    os.setsid()  # so that one signal reaches this rank and all its children
    die_with_parent(parent)
    try:
        f(*args)
    except BaseException as problem:
        if code := _exit_code(problem):
            text = "".join(traceback.format_exception(problem)).encode(errors="replace")
            reports.send((rank, code, text[-REPORT_BYTES:]))
        raise


def _exit_code(problem: BaseException) -> int:
    """The exit code with which Python ends for this exception."""
    if not isinstance(problem, SystemExit):
        return 1
    if problem.code is None:
        return 0
    return problem.code & 0xFF if isinstance(problem.code, int) else 1


# ---- in the process that starts them

_start_lock = threading.Lock()


@contextlib.contextmanager
def _child_settings(variables: dict[str, str], cpus: list[int]) -> Iterator[None]:
    """A process started in this block has these variables and CPUs from the beginning. torch reads
    both when it is loaded, and unpickling `f` may load torch."""
    names = (*REMOVED_VARIABLES, *variables)
    with _start_lock:
        before = {name: os.environ.get(name) for name in names}
        cpus_before = os.sched_getaffinity(0)  # of this thread; other threads are not affected
        try:
            _set_variables({name: variables.get(name) for name in names})
            if cpus:
                os.sched_setaffinity(0, cpus)
            yield
        finally:
            os.sched_setaffinity(0, cpus_before)
            _set_variables(before)


def _set_variables(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Ctrl-C takes effect when the block is left."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no Python handler would run in this thread
        return
    received: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


class SpawnedRanks:
    """The processes; all have ended when the block is left."""

    def __init__(self, f: Callable[..., Any], args: tuple[Any, ...]):
        self._context = multiprocessing.get_context("spawn")
        self._reports, self._report_writer = self._context.Pipe(duplex=False)
        self._arguments = (f, args, os.getpid(), self._report_writer)
        # By pidfd, not by sentinel: a rank's forked children inherit its sentinel and keep it open.
        self._running: dict[int, SpawnProcess] = {}
        self._host = socket.gethostname()  # as in the library's messages
        self._ranks: dict[ProcessId, int] = {}
        self._tails: dict[int, StderrTail] = {}
        self._failed: dict[int, ExitStatus] = {}

    def __enter__(self) -> "SpawnedRanks":
        return self

    def __exit__(self, *_: object) -> None:
        """A second Ctrl-C interrupts the wait after SIGTERM, but not SIGKILL."""
        try:
            self._terminate(signal.SIGTERM)
        finally:
            with _delay_interrupt():
                self._terminate(signal.SIGKILL)
                self._reports.close()
                self._report_writer.close()

    def start(self, tiles: list[RankCpus], port: int) -> None:
        for rank, tile in enumerate(tiles):
            variables = {
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(tile.threads)),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(tiles)),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(len(tiles)),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
            }
            process = self._context.Process(
                target=_rank_main, args=(rank, *self._arguments), name=f"rank {rank}", daemon=False
            )
            with _delay_interrupt(), _child_settings(variables, tile.cpus):
                process.start()
                self._add(rank, process)

    def _add(self, rank: int, process: SpawnProcess) -> None:
        pid = process.pid
        assert pid is not None
        try:
            self._running[os.pidfd_open(pid)] = process
        except OSError:  # without a pidfd nothing would end it
            process.kill()
            process.join()
            raise
        self._ranks[ProcessId(self._host, pid)] = rank
        self._tails[rank] = StderrTail()

    def wait(self) -> int:
        """Wait until all have ended, or FAILURE_GRACE_S after the first failure. Returns the exit
        code of the rank whose failure caused the others'."""
        deadline = math.inf
        while self._running and time.monotonic() < deadline:
            self._step(deadline)
            if self._failed and deadline == math.inf:
                deadline = time.monotonic() + FAILURE_GRACE_S
        cause = root_cause(self._failed.values(), self._tails, self._ranks)
        return cause.exit_code if cause else 0

    def _step(self, deadline: float) -> None:
        left_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        ready = wait([*self._running, self._reports], left_s)
        ended = [fd for fd in self._running if fd in ready]
        while self._reports.poll():
            rank, code, text = self._reports.recv()
            self._tails[rank].add(text)
            self._note_failure(rank, code)
        for pidfd in ended:
            process = self._reap(pidfd)
            if process.exitcode and process.pid is not None:
                self._note_failure(
                    self._ranks[ProcessId(self._host, process.pid)], process.exitcode
                )

    def _note_failure(self, rank: int, code: int) -> None:
        """A rank's report arrives before its exit; the first counts."""
        self._failed.setdefault(rank, ExitStatus(rank, code, self._host, time.monotonic()))

    def _reap(self, pidfd: int) -> SpawnProcess:
        process = self._running.pop(pidfd)
        os.close(pidfd)
        process.join()
        return process

    def _terminate(self, number: int) -> None:
        self._signal(number)
        deadline = time.monotonic() + TERMINATE_GRACE_S
        while self._running and (left_s := deadline - time.monotonic()) > 0:
            ready = wait(list(self._running), left_s)
            for pidfd in [fd for fd in self._running if fd in ready]:
                self._reap(pidfd)

    def _signal(self, number: int) -> None:
        for process in self._running.values():
            pid = process.pid
            assert pid is not None
            with contextlib.suppress(ProcessLookupError):
                is_leader = os.getpgid(pid) == pid  # not before it has called setsid()
                (os.killpg if is_leader else os.kill)(pid, number)
