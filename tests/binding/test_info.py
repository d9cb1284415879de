"""`torch-ccl info`: what it prints is what the library does."""

import os
import subprocess
import sys


def info(*options: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from torch_ccl.cli import app; app()", "info", *options]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows_of(output: str, operation: str) -> list[str]:
    return [line for line in output.splitlines() if f"│ {operation} " in line]


def test_settings_and_where_they_come_from():
    shown = info(CCL_CHUNK_BYTES="64K")
    assert shown.returncode == 0, shown.stderr
    chunk = next(line for line in shown.stdout.splitlines() if "CCL_CHUNK_BYTES" in line)
    eager = next(line for line in shown.stdout.splitlines() if "CCL_EAGER_BYTES" in line)
    assert "64K" in chunk and "environment" in chunk
    assert "default" in eager


def test_algorithms_by_table_and_by_environment():
    shown = info("--algorithms", CCL_ALLREDUCE="direct:0-16384;pipelined:16385-max")
    assert shown.returncode == 0, shown.stderr
    rows = rows_of(shown.stdout, "allreduce")
    assert any("direct" in row and "0-max" in row and "table" in row for row in rows), rows
    assert any("0-16384" in row and "environment" in row for row in rows), rows
    assert any("pipelined" in row and "16385-max" in row for row in rows), rows
    assert rows_of(shown.stdout, "barrier")


def test_a_setting_that_makes_no_sense_is_named():
    shown = info("--algorithms", CCL_ALLREDUCE="magic")
    assert shown.returncode != 0
    assert "magic" in shown.stderr
