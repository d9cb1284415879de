"""How ranks ended, and which of them the others ended for."""

import re
import signal
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

PATIENCE_S = 3.0  # for ranks to fail by themselves after the first that has failed
GRACE_S = 5.0  # from the signal that asks a rank to end to the one that ends it
TAIL_LINES = 200  # of the stderr of each rank, for the last word
TAIL_LINES_WITHOUT_TRACEBACK = 10

#: torch writes the rank before each line, once there is a group.
BEGIN_OF_TRACEBACK = re.compile(rb"(\[rank\d+\]: ?)*Traceback \(")

#: What the library says on ranks that needed another one.
BLAME = re.compile(rb"ccl: rank \d+ \(host (\S+), pid (\d+)\) (?:died|left|cannot be reached)")

#: After these nothing is left to be said by the process. The others hear of it at once, but it is
#: gone only when its memory has been given back: it may well end last and still be the cause.
SUDDEN = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class End(NamedTuple):
    """How a rank has ended."""

    rank: int
    code: int  # below 0 it is the signal
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


class Process(NamedTuple):
    """What is the same in all groups; the number of a rank is not."""

    host: str
    pid: int


class Tail:
    """The last that a rank wrote to stderr."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.traceback_at: float | None = None

    def add(self, lines: bytes) -> bool:
        """Whether the last word begins with these."""
        added = lines[:-1].split(b"\n")
        is_first = not self._lines
        self._lines.extend(added)
        if any(map(BEGIN_OF_TRACEBACK.match, added)):
            self.traceback_at = time.monotonic()
            return True
        return is_first

    def blamed(self) -> Process | None:
        """Whose end is the reason for this one's, if the library has said so."""
        match = BLAME.search(self.last_word())
        return Process(match[1].decode(), int(match[2])) if match else None

    def last_word(self) -> bytes:
        """From the last traceback on."""
        lines = list(self._lines)
        begins = [i for i, line in enumerate(lines) if BEGIN_OF_TRACEBACK.match(line)]
        begin = begins[-1] if begins else max(0, len(lines) - TAIL_LINES_WITHOUT_TRACEBACK)
        return b"".join(line + b"\n" for line in lines[begin:])


def first_to_fail(
    ends: Iterable[End], tails: dict[int, Tail], ranks: dict[Process, int]
) -> End | None:
    """Of several that failed, the one that the others failed for."""

    def began(end: End) -> tuple[bool, float]:
        failed_at = tails[end.rank].traceback_at or end.time
        return -end.code not in SUDDEN, failed_at

    failed = {end.rank: end for end in sorted(ends, key=began) if end.code != 0}
    if not failed:
        return None
    # They may have failed within a millisecond, but who knows why says it.
    first = next(iter(failed))
    named = {first}
    while (blamed := ranks.get(tails[first].blamed())) in failed and blamed not in named:
        named.add(blamed)
        first = blamed
    return failed[first]
