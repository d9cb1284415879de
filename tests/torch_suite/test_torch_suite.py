"""torch's own distributed suite on ccl, compared with the tests that pass on Gloo.

The lists of names in this folder are those of LISTED_TORCH. With another torch the suite first runs
on Gloo to find them.
"""

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.parameters import slow
from support.virtual_hosts import virtual_hosts

FOLDER = Path(__file__).parent
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
LISTED_TORCH = (2, 13)
GLOO_PASSES_AS_SHIPPED = 94
GLOO_RUNS_WIDENED = 127  # 123 pass, 4 fail
BOUND_S = 480
FULL_SUITE = pytest.mark.xdist_group("torch suite")  # the first test runs the suite


def read_list(name: str) -> dict[str, str]:
    """The names in a list, each with its comment."""
    parts = [line.partition("#") for line in (FOLDER / name).read_text().splitlines()]
    return {test.strip(): comment.strip() for test, _, comment in parts if test.strip()}


def run_suite(directory: Path, *arguments: str) -> dict[str, dict]:
    results, log = directory / "results.json", directory / "log"
    command = [sys.executable, FOLDER / "run.py", "--json", results, *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        process.wait(BOUND_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the ranks too
            process.wait()
        lines = log.read_text().splitlines()
        # pytest shows this only if a test fails.
        print("\n".join(line for line in lines if "profiler_st" not in line))
    return json.loads(results.read_text())["tests"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("torch_suite")
    return run_suite(directory, "--backend", "ccl", "--world-size", "4")


# ---- names of tests

GLOO_TEXTS = {"test_barrier_timeout_arg"}  # an error's text must be that of Gloo
GLOO_LISTS = {  # arguments of run.py, outcomes of Gloo
    "gloo_passes.txt": (["--strict"], {"pass"}),
    "cpu_tests.txt": ([], {"pass", "fail"}),
}


@pytest.fixture(scope="module")
def names_in(tmp_path_factory):
    """names_in("gloo_passes.txt") is the set of names for the installed torch."""

    @functools.cache
    def find(name: str) -> set[str]:
        if TORCH == LISTED_TORCH:
            return set(read_list(name))
        arguments, outcomes = GLOO_LISTS[name]
        directory = tmp_path_factory.mktemp("gloo")
        results = run_suite(directory, "--backend", "gloo", "--world-size", "4", *arguments)
        return {test for test, result in results.items() if result["outcome"] in outcomes}

    return find


# Over two and over four hosts; `make test` runs a sample.
LEAST_SENT_BYTES = 10_000  # more than the traffic of the store
LAYOUTS = [[0, 0, 1, 1], [0, 1, 2, 3]]
SAMPLE = "test_all_reduce_sum$|test_broadcast$|test_all_to_all_group$|test_send_recv_any_source$"


def run_over_hosts(directory: Path, layout: list[int], *arguments: str) -> dict[str, dict]:
    with virtual_hosts(len(set(layout))) as hosts:
        networks = ",".join(host.path for host in hosts)
        host_of = ",".join(map(str, layout))
        results = run_suite(directory, "--namespaces", networks, "--host-of", host_of, *arguments)
        sent = [host.sent_bytes() for host in hosts]
    assert min(sent) > LEAST_SENT_BYTES, f"the hosts did not exchange data: {sent}"
    return results


@pytest.mark.parametrize(
    "layout",
    [LAYOUTS[0], slow(LAYOUTS[1])],
    ids=["2x2", "4x1"],
)
def test_sample_over_hosts(tmp_path, layout):
    results = run_over_hosts(tmp_path, layout, "--tests", SAMPLE)
    wrong = not_passed(results, results)
    assert len(results) >= 4 and not wrong, report(wrong)


def test_sample_of_ccl_as_gloo(tmp_path):
    """The suite requests "gloo"; each test must start operations of ccl."""
    replace = ("--backend", "gloo", "--strict", "--replace")
    results = run_suite(tmp_path, *replace, "--tests", SAMPLE)
    names = [name for name, result in results.items() if result["outcome"] != "skip"]
    wrong = not_passed(results, names)
    assert len(names) >= 3 and not wrong, report(wrong)


@pytest.mark.slow
@pytest.mark.timeout(3 * BOUND_S + 60)  # with Gloo, too, to find the names
@pytest.mark.parametrize("layout", LAYOUTS, ids=["2x2", "4x1"])
def test_suite_over_hosts(tmp_path, layout, exceptions, names_in):
    results = run_over_hosts(tmp_path, layout)
    not_needed = exceptions.keys() | read_list("exceptions_over_hosts.txt").keys()
    wrong = not_passed(results, names_in("cpu_tests.txt") - not_needed)
    assert not wrong, report(wrong)


@pytest.fixture(scope="module")
def exceptions():
    """Of the installed torch: name -> comment."""
    return {
        name: condition[3]
        for name, comment in read_list("exceptions.txt").items()
        if is_met(condition := re.fullmatch(r"(?:(up to|only) 2\.(\d+), )?(.*)", comment))
    }


def is_met(condition: re.Match) -> bool:
    kind, minor, _ = condition.groups()
    if not kind:
        return True
    last = (2, int(minor))
    return last == TORCH or (kind == "up to" and last > TORCH)


# ---- checks of the results; each returns the failures


def not_passed(results, names) -> list[str]:
    """Skipped and unknown tests have not passed."""
    outcomes = {name: results.get(name, {"outcome": "unknown"}) for name in names}
    return [describe(n, result) for n, result in outcomes.items() if result["outcome"] != "pass"]


def failed(results, names) -> list[str]:
    return [describe(n, results[n]) for n in names if results[n]["outcome"] == "fail"]


def describe(name: str, result: dict) -> str:
    detail = result.get("traceback") or result.get("reason", "")
    return f"{result['outcome']} {name}\n{detail}"


def report(wrong: list[str]) -> str:
    return f"{len(wrong)} tests\n" + "\n".join(wrong)


# ---- the tests


@FULL_SUITE
@pytest.mark.slow
@pytest.mark.timeout(3 * BOUND_S + 60)  # with Gloo, too, to find the names
def test_ccl_passes_what_gloo_passes(results, exceptions, names_in):
    names = names_in("gloo_passes.txt")
    assert len(names) >= GLOO_PASSES_AS_SHIPPED
    wrong = not_passed(results, names - exceptions.keys())
    assert not wrong, report(wrong)


@FULL_SUITE
@pytest.mark.slow
@pytest.mark.timeout(3 * BOUND_S + 60)  # with Gloo, too, to find the names
def test_ccl_fails_nothing_that_a_cpu_backend_can_run(results, exceptions, names_in):
    names = names_in("cpu_tests.txt")
    assert len(names) >= GLOO_RUNS_WIDENED
    wrong = not_passed(results, names - exceptions.keys())
    wrong += failed(results, results.keys() - names)
    assert not wrong, report(wrong)


@FULL_SUITE
@pytest.mark.slow
@pytest.mark.timeout(3 * BOUND_S + 60)  # with Gloo, too, to find the names
def test_exceptions_are_few_and_still_needed(results, exceptions):
    assert len(exceptions) <= 6
    for name, comment in exceptions.items():
        place, _, message = comment.partition(": ")
        assert re.fullmatch(r"torch/\S+\.(py|hpp|cpp):\d+", place), f"{name}: where in torch?"
        assert results[name]["outcome"] == "fail", f"{name} is no exception any more: remove it"
        # Another failure of the test is not excused.
        assert message and message in results[name]["traceback"], describe(name, results[name])


@pytest.mark.slow
@pytest.mark.timeout(3 * BOUND_S + 60)  # with Gloo, too, to find the names
def test_ccl_as_gloo_passes_what_gloo_passes(tmp_path, names_in, exceptions):
    """The suite requests "gloo"; the exceptions that come from the name "ccl" do not apply. Each
    test must start operations of ccl, except those that suite.py lists."""
    results = run_suite(tmp_path, "--backend", "gloo", "--strict", "--replace")
    names = names_in("gloo_passes.txt")
    assert len(names) >= GLOO_PASSES_AS_SHIPPED
    excepted = exceptions.keys() & GLOO_TEXTS
    wrong = not_passed(results, names - excepted) + failed(results, results.keys() - names)
    assert not wrong, report(wrong)


def test_skipped_and_unknown_tests_have_not_passed():
    results = {"test_a": {"outcome": "pass"}, "test_b": {"outcome": "skip", "reason": "by name"}}
    assert not_passed(results, ["test_a"]) == []
    assert not_passed(results, ["test_b"]) == ["skip test_b\nby name"]
    assert not_passed(results, ["test_c"]) == ["unknown test_c\n"]
