#!/usr/bin/env python3
"""Runs torch's own distributed suite for a CPU backend.

tests/torch_suite/run.py --backend ccl --world-size 4             all tests for a CPU backend
tests/torch_suite/run.py --backend ccl --tests 'reduce_sum$'      some of it
tests/torch_suite/run.py --backend gloo --strict                  with torch's own skips
tests/torch_suite/run.py --backend gloo --strict --replace        the same on ccl, named gloo
tests/torch_suite/run.py --namespaces /run/netns/a,/run/netns/b --host-of 0,0,1,1     over two hosts

Prints one line per test, the tracebacks of failed tests, and the counts.
"""

import argparse
import collections
import json
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path

import suite


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["gloo", "ccl"], default="ccl")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--strict", action="store_true", help="skip as torch does, by backend name")
    parser.add_argument("--replace", action="store_true", help="run ccl under the backend's name")
    parser.add_argument("--tests", metavar="REGEX", default="", help="only names that match")
    parser.add_argument("--names", metavar="FILE", type=Path, help="only the names in this file")
    parser.add_argument("--namespaces", metavar="A,B", default="", help="of each host")
    parser.add_argument("--host-of", metavar="H,H", default="", help="index of each rank's host")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results here")
    return parser.parse_args()


def read_names(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [name for line in lines if (name := line.split("#")[0].strip())]


def chosen(names: list[str], pattern: str, file: Path | None) -> list[str]:
    if file is not None:
        wanted = read_names(file)
        if unknown := sorted(set(wanted) - set(names)):
            sys.exit(f"the suite has no {', '.join(unknown)}")
        names = [name for name in names if name in wanted]
    return [name for name in names if re.search(pattern, name)]


def error_of(error: BaseException) -> str:
    """The line of the error in the first rank that reported one."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", line)]
    return (raised or lines)[0]


class Results(unittest.TestResult):
    """Prints an outcome as soon as it is known; results[name] = {outcome, seconds, ...}."""

    def __init__(self):
        super().__init__()
        self.results = {}

    def startTest(self, test):
        self._start_s = time.monotonic()

    def addSuccess(self, test):
        self._add(test, "pass")

    def addSkip(self, test, reason):
        self._add(test, "skip", reason)

    def addError(self, test, error):
        self._add(test, "fail", error_of(error[1]), str(error[1]))

    addFailure = addError

    def _add(self, test, outcome, reason="", traceback=""):
        name = test.id().split(".")[-1]
        if name in self.results:  # tearDown failed too
            return
        seconds = round(time.monotonic() - self._start_s, 2)
        self.results[name] = {"outcome": outcome, "reason": reason, "seconds": seconds}
        if traceback:
            self.results[name]["traceback"] = traceback
        print(f"{outcome} {name}" + (f": {reason}" if reason else ""), flush=True)


def main() -> int:
    arguments = parse_arguments()
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torch_suite_") as directory:
        tempfile.tempdir = directory  # torch's harness leaves a file for every test
        cases = suite.load(
            arguments.backend,
            arguments.world_size,
            directory,
            widen=not arguments.strict,
            replace=arguments.replace,
        )
        names = arguments.namespaces.split(",")
        cases.networks = [names[int(host)] for host in arguments.host_of.split(",") if host]
        every = unittest.TestLoader().getTestCaseNames(cases)
        names = chosen(list(every), arguments.tests, arguments.names)
        report = Results()
        unittest.TestSuite(map(cases, names)).run(report)
        tempfile.tempdir = None
    results = report.results
    for name in set(names) - set(results):
        results[name] = {"outcome": "fail", "reason": "did not run", "seconds": 0}

    counts = collections.Counter(result["outcome"] for result in results.values())
    for name, result in results.items():
        if result["outcome"] == "fail":
            print(f"\n==== {name}\n{result.get('traceback', result['reason'])}")
    if arguments.json:
        description = {
            "backend": arguments.backend,
            "world_size": arguments.world_size,
            "strict": arguments.strict,
        }
        arguments.json.write_text(json.dumps({**description, "tests": results}, indent=1))
    print(
        f"{arguments.backend}, {arguments.world_size} ranks: {counts['pass']} passed, "
        f"{counts['fail']} failed, {counts['skip']} skipped in {time.monotonic() - start_s:.0f} s"
    )
    return 0 if counts["pass"] and not counts["fail"] else 1


if __name__ == "__main__":
    sys.exit(main())
