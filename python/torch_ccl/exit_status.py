"""Exit statuses of ranks, and which rank's failure caused the others to fail."""

import re
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

FAILURE_GRACE_S = 3.0  # after the first failure: time for the other ranks to fail by themselves
TERMINATE_GRACE_S = 5.0  # from SIGTERM to SIGKILL
TAIL_LINES = 200  # stderr lines kept of each rank
TAIL_LINES_WITHOUT_TRACEBACK = 10

#: Once a group exists, torch writes the rank before each line.
TRACEBACK_BEGIN = re.compile(rb"(\[rank\d+\]: ?)*Traceback \(")

#: How an error of the library names the peer that caused it.
PEER_FAILURE = re.compile(
    rb"ccl: rank \d+ \(host (\S+), pid (\d+)\) (?:died|left|cannot be reached)"
)

#: A process killed by one of these writes nothing more. Its peers detect its death at once, but it
#: may be reaped after they have ended, because the kernel frees its memory first.
FATAL_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class ExitStatus(NamedTuple):
    """How a rank ended."""

    rank: int
    code: int  # negative: the signal that killed it
    host: str
    time: float

    @property
    def exit_code(self) -> int:
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def text(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"killed by {signal_name(-self.code)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ProcessId(NamedTuple):
    """Identifies a process in all groups; its rank may differ between groups."""

    host: str
    pid: int


class StderrTail:
    """The last lines that a rank wrote to stderr."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.traceback_at: float | None = None

    def add(self, lines: bytes) -> bool:
        """Whether last_error() begins with these lines."""
        added = lines[:-1].split(b"\n")
        is_first = not self._lines
        self._lines.extend(added)
        if any(map(TRACEBACK_BEGIN.match, added)):
            self.traceback_at = time.monotonic()
            return True
        return is_first

    def failed_peer(self) -> ProcessId | None:
        """The peer that the library's error names as the cause, if there is such an error."""
        match = PEER_FAILURE.search(self.last_error())
        return ProcessId(match[1].decode(), int(match[2])) if match else None

    def last_error(self) -> bytes:
        """The last traceback and what follows it; without a traceback the last lines."""
        lines = list(self._lines)
        begins = [i for i, line in enumerate(lines) if TRACEBACK_BEGIN.match(line)]
        begin = begins[-1] if begins else max(0, len(lines) - TAIL_LINES_WITHOUT_TRACEBACK)
        return b"".join(line + b"\n" for line in lines[begin:])


def root_cause(
    statuses: Iterable[ExitStatus],
    tails: Mapping[int, StderrTail],
    ranks: Mapping[ProcessId, int],
) -> ExitStatus | None:
    """The failure that caused the others; None if no rank failed."""

    def order(status: ExitStatus) -> tuple[bool, float]:
        failed_at = tails[status.rank].traceback_at or status.time
        return -status.code not in FATAL_SIGNALS, failed_at

    failed = {status.rank: status for status in sorted(statuses, key=order) if status.code != 0}
    if not failed:
        return None
    # Ranks may fail within a millisecond of each other, so an error that names a peer counts more
    # than the order.
    cause = next(iter(failed))
    visited = {cause}
    while peer := tails[cause].failed_peer():
        rank = ranks.get(peer)
        if rank is None or rank not in failed or rank in visited:
            break
        visited.add(rank)
        cause = rank
    return failed[cause]
