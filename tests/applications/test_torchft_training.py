"""torchft's Manager and lighthouse with a process group over ccl: replicas are killed and replaced.

The process group itself: torchft's own tests (tests/torchft_suite).
"""

import json
import re

import pytest
from support.applications import PROGRAMS_DIR, PYTHON, run_bounded, variables

BOUND_S = 400
KILLS = 10

pytestmark = pytest.mark.slow


def trained(*arguments: str) -> dict:
    """The report of the program, which has compared all replicas with trained_alone()."""
    assert PYTHON.exists(), f"{PYTHON} is missing: tools/setup.sh applications"
    command = [PYTHON, PROGRAMS_DIR / "torchft_training.py", *arguments]
    result = run_bounded(command, variables(), BOUND_S)
    reports = re.findall(r'^{"program".*}$', result.output, re.MULTILINE)
    assert result.returncode == 0 and len(reports) == 1, (
        f"exit code {result.returncode}\n{result.output[-10000:]}"
    )
    return json.loads(reports[0])


@pytest.mark.timeout(2 * BOUND_S + 60)
@pytest.mark.parametrize("mode", ["synchronous quorum", "asynchronous quorum"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_training_goes_on_after_ten_kills(replicas, mode):
    options = ["--replicas", str(replicas)]
    options += ["--asynchronous-quorum"] if mode == "asynchronous quorum" else []
    with_kills = trained(*options, "--kills", str(KILLS))
    without = trained(*options, "--steps", str(with_kills["steps"]))
    assert len(with_kills["recoveries"]) == KILLS and not without["recoveries"]
    assert with_kills["losses"] == pytest.approx(without["losses"], rel=1e-9)
    for recovery in with_kills["recoveries"]:
        if recovery["fault"] == "kill":
            assert "died" in recovery["messages"][0], recovery
