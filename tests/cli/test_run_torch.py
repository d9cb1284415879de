"""`torch-ccl run` with scripts that communicate through torch.distributed."""

import json
import socket
import subprocess

import pytest
from support.launchers import clean_environment
from support.run_command import (
    ALL_REDUCE,
    BOUND_S,
    COMMAND,
)


def start_command(*words: str) -> subprocess.Popen:
    """Starts the command in a new interpreter, as a user would."""
    return subprocess.Popen(
        [COMMAND, "run", *words],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_all_reduce(script):
    with start_command("-n", "2", script(ALL_REDUCE)) as process:
        out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, err
    assert [json.loads(line[4:])["sum"] for line in out.splitlines()] == [[1.0] * 3] * 2


@pytest.mark.slow
def test_two_jobs_at_once(script):
    path = script(ALL_REDUCE)
    with start_command("-n", "2", path) as one, start_command("-n", "3", path) as two:
        for process, total in ((one, 1.0), (two, 3.0)):
            out, err = process.communicate(timeout=BOUND_S)
            assert process.returncode == 0, err
            assert [json.loads(line[4:])["sum"][0] for line in out.splitlines()] == [total] * (
                2 if process is one else 3
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "how"),
    [
        ("raise ValueError('the cause')", 1, "exit code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
    ],
)
def test_failure_of_a_rank_in_a_group(script, ending, code, how):
    """Its peers fail too, but it is reported as the first."""
    text = f"if rank == 1: {ending}\ndist.barrier()\n"
    with start_command("-n", "3", script(ALL_REDUCE + text)) as process:
        _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == code, err
    expected = f"torch-ccl run: rank 1 on host {socket.gethostname()} failed first: {how}"
    assert err.splitlines()[-1] == expected
    assert err.count("rank 1 (host") >= 2  # the peers' errors


@pytest.mark.slow
def test_all_reduce_over_hosts(over_hosts, script):
    with over_hosts("-n", "4", script(ALL_REDUCE)) as command:
        assert command.finish() == 0, command.err
    reports = command.reports()
    assert [row["sum"] for row in reports] == [[6.0] * 3] * 4
    assert {row["host"] for row in reports} == {"h1", "h2"}
