"""torchft's own tests: what passes on Gloo passes on ccl in Gloo's place."""

import pytest
from support.torchft_suite import BOUND_S, RETRIES, passed, run_suite

AT_LEAST = 140  # on Gloo; fewer would mean that the tests were not found

# The tests use fixed ports and have limits of less than a second.
pytestmark = [pytest.mark.slow, pytest.mark.serial]


@pytest.mark.timeout(2 * BOUND_S * (1 + RETRIES))
def test_what_passes_on_gloo_passes_on_ccl():
    on_gloo = run_suite("gloo")  # first: it writes files with which the tests of DiLoCo compare
    on_ccl = run_suite("ccl")
    assert len(passed(on_gloo)) >= AT_LEAST
    only_gloo = sorted(passed(on_gloo) - passed(on_ccl))
    assert not only_gloo, "\n".join(f"{name}\n{on_ccl[name]['error']}" for name in only_gloo)
