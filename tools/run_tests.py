#!/usr/bin/env python3
"""Runs pytest in two phases and prints the counts of both in the last line.

    tools/run_tests.py -m "not slow" -k barrier     all arguments but --workers go to pytest

The parallel phase runs the tests without the marker `serial` on several worker processes
(pytest-xdist); the serial phase runs the tests with it, one after another. A phase fails if it
leaves processes or network namespaces behind; they are listed and removed.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INTERRUPTED, NO_TESTS = 2, 5  # exit codes of pytest
LONGEST = 10
EXIT_GRACE_S = 5.0  # for processes that exit once pytest has closed their pipes
RUN_VARIABLE = "TCCL_TEST_RUN"  # inherited by every process that a test starts
SUMMARY_VARIABLE = "TCCL_TEST_SUMMARY"  # where tests/conftest.py writes counts and durations


@dataclass
class Result:
    exit_code: int
    counts: Counter = field(default_factory=Counter)
    durations_s: dict[str, float] = field(default_factory=dict)


# ---- leftovers


def command_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b" ".join(words).decode(errors="replace").strip()


def processes_of(run: str) -> dict[int, str]:
    """Processes with this run's mark in their environment, by pid."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    found = {}
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or exited meanwhile
            pid = int(environment.parent.name)
            if mark in environment.read_bytes().split(b"\0") and pid != os.getpid():
                found[pid] = command_of(pid)
    return found


def namespaces() -> set[str]:
    """Network namespaces of virtual hosts whose creator has exited."""
    directory = Path("/run/netns")
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    made_by = {name: re.match(r"tccl(\d+)-", name) for name in names}
    return {name for name, pid in made_by.items() if pid and not Path(f"/proc/{pid[1]}").exists()}


def remove_leftovers(run: str, earlier: set[str]) -> list[str]:
    """Returns one line for each."""
    end = time.monotonic() + EXIT_GRACE_S
    while (processes := processes_of(run)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    left = namespaces() - earlier
    for name in left:
        subprocess.run(["ip", "netns", "del", name], check=False, timeout=30)
    lines = [f"process {pid}: {command[:200]}" for pid, command in sorted(processes.items())]
    return lines + [f"network namespace {name}" for name in sorted(left)]


# ---- phases


def run_phase(title: str, arguments: list[str]) -> Result:
    print(f"==== {title}", flush=True)
    run, earlier = uuid.uuid4().hex, namespaces()
    with tempfile.TemporaryDirectory(prefix="tccl-tests-") as directory:
        summary = Path(directory) / "summary.json"
        environment = {**os.environ, RUN_VARIABLE: run, SUMMARY_VARIABLE: str(summary)}
        command = [sys.executable, "-m", "pytest", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        try:
            result = Result(process.wait())
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # pytest reports what it has run so far
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
            left = remove_leftovers(run, earlier)
        if summary.exists():
            read = json.loads(summary.read_text())
            result.counts, result.durations_s = Counter(read["counts"]), read["durations_s"]
        elif result.exit_code != NO_TESTS:
            result.counts["failed"] += 1  # pytest itself failed
    if left:
        print(f"{title}: left behind", *left, sep="\n  ")
        result.counts["failed"] += 1
        result.exit_code = result.exit_code or 1
    return result


def run_phases(expression: str, workers: int, others: list[str]) -> list[Result]:
    def marker(own: str) -> list[str]:
        return ["-m", f"({expression}) and {own}" if expression else own]

    on_workers = ["-n", str(workers), "--dist", "loadgroup"]
    phases = {
        f"parallel phase, {workers} workers": [*on_workers, *marker("not serial")],
        "serial phase": marker("serial"),
    }
    results = []
    for title, arguments in phases.items():
        results.append(run_phase(title, [*arguments, *others]))
        code = results[-1].exit_code
        if code == INTERRUPTED or (code == 1 and "-x" in others):
            break
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("-m", dest="expression", default="", help="as pytest's -m")
    parser.add_argument("--workers", type=int, default=3 * (os.cpu_count() or 2) // 2)
    arguments, others = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that leftovers are removed
    # A shell starts background jobs with SIGINT ignored, which every test process would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    results = run_phases(arguments.expression, arguments.workers, others)

    durations = {name: s for result in results for name, s in result.durations_s.items()}
    used = os.times()
    cpu_s = used.children_user + used.children_system
    print(f"==== longest tests; all took {time.monotonic() - start:.0f} s, {cpu_s:.0f} s of CPU")
    for name in sorted(durations, key=durations.__getitem__, reverse=True)[:LONGEST]:
        print(f"{durations[name]:6.1f} s  {name}")
    counts = sum((result.counts for result in results), Counter())
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped")))
    codes = {result.exit_code for result in results}
    return max(codes - {NO_TESTS}, default=NO_TESTS)


if __name__ == "__main__":
    sys.exit(main())
