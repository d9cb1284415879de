"""Which rank's failure caused the others'."""

import signal
import time

from torch_ccl.exit_status import ExitStatus, ProcessId, StderrTail, root_cause


def test_root_cause():
    tails = {rank: StderrTail() for rank in range(4)}
    tails[1].add(b"Traceback (most recent call last):\nError\n")
    end = time.monotonic()

    def first(*ends: tuple[int, int, float]) -> int | None:
        rows = [ExitStatus(rank, code, "host", end + later_s) for rank, code, later_s in ends]
        found = root_cause(rows, tails, {ProcessId("a", 7): 2, ProcessId("a", 8): 1})
        return found.rank if found else None

    assert first((0, 0, 1), (3, 0, 2)) is None
    assert first((0, 1, 1), (3, 1, 2)) == 0
    assert first((0, 1, 1), (1, 1, 2)) == 1  # its traceback came before
    assert first((1, 1, 1), (3, -signal.SIGKILL, 2)) == 3  # the others noticed before it was gone
    assert first((1, 1, 1), (3, -signal.SIGABRT, 2)) == 1  # an abort may be a consequence
    tails[1].add(b"DistBackendError: ccl: rank 0 (host a, pid 7) left group pair, but ...\n")
    assert first((1, 1, 1), (0, 1, 2)) == 1  # rank 2 has ended well, or we do not know
    assert first((1, 1, 1), (2, 1, 2)) == 2  # it says so
    tails[2].add(b"DistBackendError: ccl: rank 1 (host a, pid 8) died during ...\n")
    assert first((1, 1, 1), (2, 1, 2)) in (1, 2)  # each other, and no end
