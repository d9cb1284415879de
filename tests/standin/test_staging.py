"""Staging of accelerator tensors through host memory, on the stand-in accelerator."""

import functools
import json
import os
import sys
from pathlib import Path

import pytest
from support import staging_checks, staging_failures
from support.commands import ROOT, run
from support.parameters import slow
from support.ranks import run_script
from support.standin_device import environment

CONFORMANCE = ROOT / "tests/support/torch_conformance.py"
SERVED = {"CCL_DEVICES": "standin", "OMP_NUM_THREADS": "1"}


CHECKS = staging_checks.CHECKS
FAILURES = tuple(name for name in CHECKS if CHECKS[name].__module__ == staging_failures.__name__)
RESULTS = tuple(name for name in CHECKS if name not in FAILURES)


@functools.cache
def outcomes(names: tuple[str, ...], jobs: int = 1) -> dict[str, str | None]:
    """The failure of each check, or None; one program runs the checks and imports torch once."""
    result = run(
        [sys.executable, Path(staging_checks.__file__), "--jobs", jobs, *names],
        env={**os.environ, **environment(), **SERVED},
    )
    lines = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    found = {line["name"]: line["failure"] for line in lines}
    assert tuple(found) == names, result.output
    return found


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("staging")
@pytest.mark.parametrize("name", RESULTS)
def test_staging(name):
    assert outcomes(RESULTS)[name] is None, outcomes(RESULTS)[name]


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("staging failures")
@pytest.mark.parametrize("name", FAILURES)
def test_staging_failure(name):
    failure = outcomes(FAILURES, jobs=4)[name]  # most of them wait
    assert failure is None, failure


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [(2, 300), slow(4, 1500)],
)
def test_conformance_on_the_device(ranks, cases):
    """The cases of the CPU, in chunks of 256 bytes: every dtype, reduction and layout."""
    command = [sys.executable, CONFORMANCE, "--device", "standin", "--ranks", ranks]
    wanted = {**environment(delay_ms=0.05), **SERVED, "CCL_STAGING_BYTES": "256"}
    result = run([*command, "--cases", cases, "--seed", 5], env={**os.environ, **wanted})
    assert result.returncode == 0, result.output
    assert result.output.rstrip().endswith("\n0 failed"), result.output


def test_a_device_that_torch_does_not_know():
    script = """
import torch.distributed as dist
try:
    dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
except ValueError as error:
    print(error)
"""
    printed = run_script(script, CCL_DEVICES="nowhere")
    assert "CCL_DEVICES" in printed and "'nowhere'" in printed


def test_devices_by_default():
    script = """
import torch.distributed as dist
dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend_config())
"""
    assert run_script(script).strip() == "cpu:ccl,xpu:ccl"
