"""Faults between hosts: runs the cases of hosts_faults.cc on virtual hosts."""

import os
import subprocess

import pytest
from support.commands import BUILD_DIR, run
from support.virtual_hosts import virtual_hosts

PROGRAM = BUILD_DIR / "tests/hosts_faults"


def cases() -> list[str]:
    listed = subprocess.run(
        [PROGRAM, "--gtest_list_tests"], capture_output=True, text=True, timeout=60, check=False
    ).stdout.splitlines()
    suite, names = "", []
    for line in listed:
        if line.startswith("  "):
            names.append(suite + line.strip())
        elif line.endswith("."):
            suite = line
    return names


@pytest.fixture(scope="module")
def namespaces():
    with virtual_hosts(3) as hosts:
        yield ",".join(f"/run/netns/{host.namespace}" for host in hosts)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow if c.startswith("Slow") else ()) for c in cases()],
)
def test_case(case, namespaces):
    finished = run(
        [PROGRAM, f"--gtest_filter={case}"], env={**os.environ, "TCCL_NAMESPACES": namespaces}
    )
    print(finished.output)
    assert finished.returncode == 0 and "[  PASSED  ] 1 test" in finished.output


def test_there_are_cases():
    assert len(cases()) >= 10
