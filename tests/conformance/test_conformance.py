"""The library against the reference: every collective, dtype and reduction, ranks as processes."""

import re

import pytest
from support.algorithms import ONE_HOST, alternatives, forced
from support.commands import BUILD_DIR, EMULATOR, run
from support.parameters import slow

SEED = 1
# Cases per number of ranks with default settings. Up to four ranks every combination of collective,
# dtype and reduction occurs several times; above, combinations are drawn at random.
CASES = {1: 2100, 2: 5120, 3: 5120, 4: 5120, 5: 2500, 6: 2500, 7: 2000, 8: 2000, 9: 2000}
SOME = (2, 3, 4, 7)  # even and odd, powers of two and others
# Sizes around which the default choice of algorithm changes.
LIMITS = ["--limit-bytes", 65536]
TINY = ["--chunk-bytes", 16, "--eager-bytes", 16]
PROGRAM = BUILD_DIR / "tests/conformance"
# (operation, algorithm) of operations with more than one row in the table of algorithms.
FORCED = alternatives(PROGRAM, ONE_HOST)


def conformance(ranks: int, cases: int, *options) -> None:
    """Runs the program; every case must have run and passed."""
    command = ["--ranks", ranks, "--cases", cases, "--seed", SEED, *options]
    finished = run([*EMULATOR, PROGRAM, *command])
    print(finished.output)
    closing = re.search(r"^conformance: P=\d+ cases=(\d+) failed=(\d+)", finished.output, re.M)
    assert finished.returncode == 0, finished.output[-4000:]
    assert closing, "no closing line"
    assert int(closing[2]) == 0
    assert int(closing[1]) == cases


@pytest.mark.parametrize("ranks", [ranks if ranks in SOME else slow(ranks) for ranks in CASES])
def test_default_settings(ranks):
    conformance(ranks, CASES[ranks], *LIMITS)


@pytest.mark.parametrize("ranks", [slow(2), 3, slow(4), slow(9)])
def test_chunks_of_16_bytes(ranks):
    conformance(ranks, 3000 if ranks <= 4 else 1000, *TINY)


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize(("operation", "algorithm"), FORCED)
@pytest.mark.parametrize("sizes", [LIMITS, TINY], ids=["default", "tiny"])
def test_forced_algorithm(ranks, operation, algorithm, sizes):
    conformance(ranks, 400, *forced(operation, algorithm), *sizes)


# Sizes above the threshold of zero copy.
SHARED = ["--shared", "--large-one-in", 2, "--limit-bytes", 300_000, "--limit-bytes", 700_000]


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (3, 150),
        slow(2, 800),
        slow(3, 600),
        slow(5, 300),
    ],
)
def test_shared_memory(ranks, cases):
    conformance(ranks, cases, *SHARED)


# Chunks of 16 bytes are 131,000 steps of three ranks on two cores, within the operation's timeout.
@pytest.mark.serial
@pytest.mark.parametrize(
    "chunk", [slow(16, id="tiny"), slow(1000, id="small"), pytest.param(100_001, id="odd")]
)
def test_shared_memory_with_odd_chunk_sizes(chunk):
    conformance(3, 100, *SHARED, "--chunk-bytes", chunk)


@pytest.mark.parametrize("more", [[], ["--shared"]], ids=["slots", "shared"])
def test_sequence_numbers_wrap(more):
    conformance(3, 300, "--first-sequence", 2**32 - 3, *more)


@pytest.mark.tsan
def test_shared_memory_with_ranks_as_threads():
    conformance(3, 20 if EMULATOR else 100, *SHARED, "--threads")


@pytest.mark.tsan
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("sizes", [[], ["--chunk-bytes", 64, "--eager-bytes", 64]])
def test_ranks_as_threads(ranks, sizes):
    conformance(ranks, 500, "--threads", *sizes)


@pytest.mark.tsan
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("operation", "algorithm"), FORCED)
def test_forced_algorithm_with_ranks_as_threads(ranks, operation, algorithm):
    sizes = ["--chunk-bytes", 64]
    conformance(ranks, 150, "--threads", *forced(operation, algorithm), *sizes)
