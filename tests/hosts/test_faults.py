"""Faults between hosts: runs the cases of hosts_*.cc on virtual hosts."""

import os
import subprocess
from pathlib import Path

import pytest
from support.commands import BUILD_DIR, run
from support.virtual_hosts import virtual_hosts

PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("hosts_*.cc"))


def cases_of(program: str) -> list[str]:
    listed = subprocess.run(
        [BUILD_DIR / "tests" / program, "--gtest_list_tests"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
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


def cases() -> list:
    return [
        pytest.param(program, case, marks=pytest.mark.slow if case.startswith("Slow") else ())
        for program in PROGRAMS
        for case in cases_of(program)
    ]


@pytest.mark.parametrize("program, case", cases())
def test_case(program, case, namespaces):
    finished = run(
        [BUILD_DIR / "tests" / program, f"--gtest_filter={case}"],
        env={**os.environ, "TCCL_NAMESPACES": namespaces},
    )
    print(finished.output)
    assert finished.returncode == 0 and "[  PASSED  ] 1 test" in finished.output


@pytest.mark.parametrize("program", PROGRAMS)
def test_there_are_cases(program):
    assert len(cases_of(program)) >= 5
