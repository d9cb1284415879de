"""The library against the reference with ranks on several hosts: see tests/conformance."""

import pytest
from support.algorithms import SEVERAL_HOSTS, alternatives, forced
from support.commands import BUILD_DIR
from support.host_conformance import conformance
from support.virtual_hosts import virtual_hosts

# The host of each rank.
LAYOUTS = {
    "2x2": [0, 0, 1, 1],
    "4x1": [0, 1, 2, 3],
    "3+1": [0, 0, 0, 1],
    "interleaved": [0, 1, 0, 1],
    "8x1": [0, 1, 2, 3, 4, 5, 6, 7],
}
ALL = list(LAYOUTS)
SQUARES = ["2x2", "4x1"]

TINY = ["--chunk-bytes", 16, "--eager-bytes", 16]
SMALL = ["--chunk-bytes", 1000, "--eager-bytes", 100]
LARGE = ["--limit-bytes", 1_000_000, "--large-one-in", 3]
LIMITS = ["--limit-bytes", 32768]  # where the choice of algorithm changes


FORCED = alternatives(BUILD_DIR / "tests/conformance", SEVERAL_HOSTS)

# Name, layouts, cases, options.
SLOW = [
    ("default", ALL, 5000, LIMITS),
    ("tiny", ALL, 2000, TINY),
    ("small", SQUARES, 3000, SMALL),
    ("large", SQUARES, 1000, LARGE),
    ("large", ["3+1", "interleaved", "8x1"], 300, LARGE),
    *((f"{op}-{name}", ALL, 2000, [*forced(op, name), *LIMITS]) for op, name in FORCED),
    *((f"{op}-{name}-tiny", SQUARES, 1000, [*forced(op, name), *TINY]) for op, name in FORCED),
    ("wrap", SQUARES, 3000, ["--first-sequence", 2**32 - 1000]),
    ("shared", SQUARES, 1000, ["--shared", "--limit-bytes", 300_000, "--large-one-in", 3]),
    ("sockets", ["2x2"], 3000, ["--set", "CCL_ATL_PROVIDER=sockets"]),
]


@pytest.fixture(scope="module")
def hosts():
    with virtual_hosts(8) as hosts:
        yield hosts


@pytest.mark.parametrize("layout", SQUARES)
def test_sample(hosts, layout):
    conformance(hosts, LAYOUTS[layout], 1000, *LIMITS)


@pytest.mark.parametrize("layout", SQUARES)
def test_sample_of_tiny_pieces_while_sequence_numbers_wrap(hosts, layout):
    conformance(hosts, LAYOUTS[layout], 300, *TINY, "--first-sequence", 2**32 - 100)


def named(name: str, layout: str, cases: int, options: list):
    return pytest.param(layout, cases, options, id=f"{name}-{layout}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("layout", "cases", "options"),
    [named(name, layout, *rest) for name, layouts, *rest in SLOW for layout in layouts],
)
def test_conformance(hosts, layout, cases, options):
    conformance(hosts, LAYOUTS[layout], cases, *options)
