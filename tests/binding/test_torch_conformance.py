"""Every collective, dtype and reduction through torch, on every layout, against plain loops."""

import functools

import pytest
from support.torch_conformance import combinations, conformance, report

SEED = 1
# Up to four ranks every combination of collective, dtype and reduction comes at least once.
CASES = {1: 1500, 2: 1500, 3: 1500, 4: 1500, 5: 1000}
REQUIRED_CASES = 5_000


@functools.cache
def run(size: int) -> int:
    failures = conformance(SEED, size, CASES[size])
    assert not failures, "\n".join([f"{len(failures)} failures", *failures[:20]])
    return CASES[size]


@pytest.mark.parametrize("size", CASES)
def test_conformance(size):
    run(size)


def test_every_combination_comes():
    assert all(CASES[size] >= len(combinations()) for size in (1, 2, 3, 4))


@pytest.mark.timeout(600)  # runs again what was not selected
def test_enough_cases(capsys):
    assert sum(run(size) for size in CASES) >= REQUIRED_CASES
    with capsys.disabled():
        print("\n" + report(SEED, CASES))
