"""Programs from PyPI train on ccl without a change, to the loss that they have on Gloo."""

import os
import sys

import pytest
from support.applications import (
    BOUND_S,
    BY_NAME,
    check_backend,
    check_fails_on_gloo,
    check_losses,
    finished,
    marked_processes,
    run_bounded,
)

START_SLEEPER = """
import subprocess, sys, time
print("started", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.timeout(3 * BOUND_S + 60)
@pytest.mark.parametrize("name", BY_NAME)
def test_program_trains_on_ccl_as_on_gloo(name):
    program = BY_NAME[name]
    on_gloo = finished(program, "gloo")
    on_ccl = finished(program, "ccl")
    check_backend(on_gloo, "gloo")
    check_backend(on_ccl, "ccl")
    check_losses(on_gloo, on_ccl)
    check_fails_on_gloo(program)


def test_late_program_is_ended_with_its_children():
    environment = {**os.environ, "APPLICATION_TEST": f"of {os.getpid()}"}
    result = run_bounded([sys.executable, "-c", START_SLEEPER], environment, bound_s=3)
    assert result.returncode is None and result.output == "started\n"
    assert marked_processes(f"APPLICATION_TEST=of {os.getpid()}") == []
