"""Every collective, dtype and reduction through torch, on every layout, against plain loops."""

import pytest
from support.parameters import slow
from support.torch_conformance import combinations, conformance

SEED = 1
# Up to four ranks every combination of collective, dtype and reduction comes at least once.
CASES = {1: 1500, 2: 1500, 3: 1500, 4: 1500, 5: 1000}


SLOW = (2, 4, 5)


@pytest.mark.parametrize("size", [slow(n) if n in SLOW else n for n in CASES])
def test_conformance(size):
    failures = conformance(SEED, size, CASES[size])
    assert not failures, "\n".join([f"{len(failures)} failures", *failures[:20]])


def test_every_combination_comes():
    assert all(CASES[size] >= len(combinations()) for size in (1, 2, 3, 4))
