"""Runs the C++ tests of unit/ and faults/: each case of each `*_test` program is one test here."""

import re
import subprocess

import pytest
from support.commands import BUILD_DIR, EMULATOR, run

GROUP_ABOVE = 60  # a program with more cases is run suite by suite, to start fewer processes
#: Programs of the serial phase: they measure time, or compare /tmp, /dev/shm and /proc.
SERIAL = {
    "control_authentication_test",
    "control_plane_test",
    "control_process_test",
    "death_test",
    "kill_soak_test",
}


def cases_of(program) -> list[str]:
    """`Suite.case` names, from a listing of suites with their cases indented below them."""
    command = [*EMULATOR, program, "--gtest_list_tests"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    cases, suite = [], ""
    for line in listing.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            cases.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return cases


def filters_of(program) -> list[str]:
    cases = cases_of(program)
    if len(cases) > GROUP_ABOVE:
        return list(dict.fromkeys(case.split(".")[0] + ".*" for case in cases))
    return cases


def marks_of(program: str, case: str) -> list:
    """Suites that start processes are left out under TSan."""
    marks = [pytest.mark.serial] if program in SERIAL else []
    if not re.search("Process|DeathTest", case.split(".")[0]):
        marks.append(pytest.mark.tsan)
    return marks


def all_cases():
    programs = sorted((BUILD_DIR / "tests").glob("*_test"))
    if not programs:
        pytest.fail(f"no test programs in {BUILD_DIR}/tests: make library", pytrace=False)
    if missing := SERIAL - {program.name for program in programs}:
        pytest.fail(f"SERIAL names programs that do not exist: {missing}", pytrace=False)
    for program in programs:
        for case in filters_of(program):
            yield pytest.param(
                program, case, id=f"{program.name}-{case}", marks=marks_of(program.name, case)
            )


@pytest.mark.parametrize("program, case", list(all_cases()))
def test_case(program, case):
    result = run([*EMULATOR, program, f"--gtest_filter={case}", "--gtest_color=no"])
    if result.returncode != 0:
        pytest.fail(
            f"{program.name} exited with {result.returncode}\n{result.output}", pytrace=False
        )
    assert "[  PASSED  ]" in result.output, result.output
    if "[  SKIPPED ]" in result.output:
        pytest.skip(result.output)
