"""The library's table of algorithms, as the conformance program prints it. Tests that force each
algorithm take their parameters from here, so that a new row is tested without a change."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from support.commands import EMULATOR

ONE_HOST, SEVERAL_HOSTS = "one_host", "several_hosts"


def algorithms(program: Path, scope: str) -> list[tuple[str, str]]:
    """(operation, algorithm) of each row of a scope."""
    if not program.exists():
        pytest.fail(f"{program} is not built: run `make library`", pytrace=False)
    command = [*EMULATOR, program, "--list-algorithms"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [(operation, name) for row_scope, operation, name in rows if row_scope == scope]


def alternatives(program: Path, scope: str) -> list[tuple[str, str]]:
    """The rows of operations with more than one algorithm: only these need to be forced, since the
    others run by default."""
    rows = algorithms(program, scope)
    assert rows, f"the table has no algorithm for {scope}"
    count = Counter(operation for operation, _ in rows)
    return [row for row in rows if count[row[0]] > 1]


def forced(operation: str, algorithm: str) -> list[str]:
    """Options of the conformance program that run one operation by one algorithm."""
    return ["--ops", operation, "--set", f"CCL_{operation.upper()}={algorithm}"]
