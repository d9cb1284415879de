"""Mutation tests: applies one fault at a time to a copy of the tree; a test must fail.

    tests/mutants/run.py                all mutants
    tests/mutants/run.py stale-slot     only those named
    tests/mutants/run.py --list

A mutant is a row of mutants.toml: a text that occurs exactly once in a file, its replacement, and
the tests of which one must fail. Exits with 1 if a mutant survives, does not compile, or its text
is not in the source.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutants.toml")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache")


class Problem(Exception):
    """The mutant cannot be tried."""


@dataclass
class Test:
    name: str
    preset: str
    arguments: list[str]
    program: str = "conformance"
    timeout_s: int = 60


@dataclass
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    tests: list[str]
    why: str = ""


@dataclass
class Outcome:
    caught_by: str = ""
    evidence: str = ""
    seconds: float = 0.0
    survived: list[str] = field(default_factory=list)


def load_table() -> tuple[dict[str, Test], list[Mutant]]:
    table = tomllib.loads(TABLE.read_text())
    tests = {name: Test(name=name, **row) for name, row in table["tests"].items()}
    return tests, [Mutant(**row) for row in table.get("mutant", [])]


class Tree:
    """A copy of the sources with its own builds, which are reused from mutant to mutant."""

    def __init__(self, directory: Path):
        self.root = directory / "tree"
        shutil.copytree(ROOT, self.root, ignore=NOT_COPIED, symlinks=True)
        # ccache hits across directories.
        self.environment = os.environ | {
            "CCACHE_BASEDIR": str(self.root),
            "CCACHE_NOHASHDIR": "1",
            "TMPDIR": str(directory),  # files of crashed tests are removed with the copy
        }

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant):
        path = self.root / mutant.file
        original = path.read_text()
        found = original.count(mutant.find)
        if found != 1:
            raise Problem(f"`find` occurs {found} times in {mutant.file}")
        path.write_text(original.replace(mutant.find, mutant.replace))
        try:
            yield
        finally:
            path.write_text(original)

    def build(self, test: Test):
        if not (self.root / "build" / test.preset / "build.ninja").exists():
            self._call(["cmake", "--preset", test.preset, "--log-level=WARNING"])
        self._call(["cmake", "--build", "--preset", test.preset, "--target", test.program])

    def _call(self, command: list[str]):
        finished = subprocess.run(
            command, cwd=self.root, env=self.environment, text=True, capture_output=True
        )
        if finished.returncode != 0:
            raise Problem(f"{' '.join(command)} failed:\n{finished.stdout[-3000:]}")

    def run(self, test: Test) -> tuple[int | None, str]:
        """Returns the exit code (None for a timeout) and the output."""
        program = self.root / "build" / test.preset / "tests" / test.program
        command = [*self._prefix(test.preset), str(program), *test.arguments]
        process = subprocess.Popen(
            command,
            env=self.environment | {"TSAN_OPTIONS": "halt_on_error=1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=test.timeout_s)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @staticmethod
    def _prefix(preset: str) -> list[str]:
        """Some kernels randomise addresses more widely than TSan's shadow memory allows."""
        prefix = ["setarch", os.uname().machine, "-R"]
        if preset != "tsan" or subprocess.run([*prefix, "true"], capture_output=True).returncode:
            return []
        return prefix


def evidence_in(output: str) -> str:
    marks = ("FAILED", "WARNING: ThreadSanitizer", "ended with")
    lines = [line for line in output.splitlines() if line.startswith(marks)]
    return lines[0] if lines else output.strip().splitlines()[-1] if output.strip() else ""


def check_unmutated(tree: Tree, tests: list[Test]):
    for test in tests:
        tree.build(test)
        code, output = tree.run(test)
        if code != 0:
            raise Problem(f"test {test.name} fails without a mutant:\n{output[-3000:]}")


def try_mutant(tree: Tree, mutant: Mutant, tests: dict[str, Test]) -> Outcome:
    outcome = Outcome()
    begin = time.monotonic()
    with tree.mutated(mutant):
        for test in (tests[name] for name in mutant.tests):
            tree.build(test)
            code, output = tree.run(test)
            if code != 0:
                outcome.caught_by = test.name
                outcome.evidence = evidence_in(output) if code is not None else "timeout"
                break
            outcome.survived.append(test.name)
    outcome.seconds = time.monotonic() - begin
    return outcome


def print_row(name: str, caught_by: str, seconds: float, evidence: str):
    print(f"{name:<28} {caught_by:<12} {seconds:6.1f}  {evidence[:120]}", flush=True)


def run_mutants(tests: dict[str, Test], mutants: list[Mutant]) -> int:
    bad = 0
    with tempfile.TemporaryDirectory(prefix="tccl-mutants-") as directory:
        tree = Tree(Path(directory))
        used = dict.fromkeys(name for mutant in mutants for name in mutant.tests)
        begin = time.monotonic()
        check_unmutated(tree, [tests[name] for name in used])
        print(f"{'mutant':<28} {'caught by':<12} {'s':>6}  evidence")
        print_row("(none)", "-", time.monotonic() - begin, "all tests pass")
        for mutant in mutants:
            try:
                outcome = try_mutant(tree, mutant, tests)
            except Problem as problem:
                bad += 1
                print_row(mutant.name, "ERROR", 0, str(problem))
                continue
            bad += not outcome.caught_by
            print_row(
                mutant.name, outcome.caught_by or "SURVIVED", outcome.seconds, outcome.evidence
            )
    print(f"mutants: {len(mutants) - bad} of {len(mutants)} caught")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--list", action="store_true", help="show the table and end")
    arguments = parser.parse_args()
    tests, mutants = load_table()
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name:<28} {mutant.file}: {mutant.why}")
        return 0
    unknown = set(arguments.names) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [m for m in mutants if not arguments.names or m.name in arguments.names]
    try:
        return run_mutants(tests, chosen)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
