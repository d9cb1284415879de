"""Misconfigured jobs: each fails soon, and its last line says what to change."""

import socket
import subprocess
import sys
import time

import pytest
from support.launchers import clean_environment, ended, free_port
from support.parameters import slow

BOUND_S = 60
JOIN = """
import datetime, time, torch.distributed as dist, torch_ccl
dist.init_process_group("ccl", timeout=datetime.timedelta(seconds={timeout}))
print("joined", flush=True)
time.sleep({stay})
"""


def start(*, timeout: int = 100, stay: int = 0, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", JOIN.format(timeout=timeout, stay=stay)],
        env=clean_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def last_line(process: subprocess.Popen) -> str:
    with ended(process):
        out, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode != 0, out
    return out.splitlines()[-1]


def at(port: int, **variables: str) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}


@pytest.mark.parametrize(
    "variables, line",
    [
        ({"RANK": "0"}, "RANK=0 is set, but WORLD_SIZE is not: set both, or neither"),
        slow({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, but RANK is not: set both, or neither"),
        slow(
            {"RANK": "0", "WORLD_SIZE": "0"},
            "RANK=0 of WORLD_SIZE=0: ranks go from 0 to WORLD_SIZE - 1",
        ),
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            "RANK=2 of WORLD_SIZE=2: ranks go from 0 to WORLD_SIZE - 1",
        ),
        slow({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one is not a non-negative number"),
        slow({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 is not a non-negative number"),
    ],
)
def test_invalid_rank_variables(variables, line):
    assert last_line(start(**at(free_port(), **variables))) == f"ValueError: {line}"


@pytest.fixture
def foreign_port():
    """A port on which a program listens that is no store and sends nothing."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_port_of_another_program(foreign_port, rank):
    line = last_line(start(**at(foreign_port, RANK=rank, WORLD_SIZE="2")))
    if rank == "0":
        assert f"MASTER_PORT={foreign_port} is in use on {socket.gethostname()}" in line
        assert "set MASTER_PORT to a port that is free" in line
    else:
        assert f"MASTER_PORT={foreign_port}: set MASTER_PORT to a port that is free there" in line


def test_two_processes_with_rank_0():
    variables = at(free_port(), RANK="0", WORLD_SIZE="2")
    first, second = start(**variables), start(**variables)
    with ended(first), ended(second):
        while first.poll() is None and second.poll() is None:
            time.sleep(0.05)
        failed, other = (first, second) if first.poll() is not None else (second, first)
        assert "another process that is rank 0" in last_line(failed)
        assert other.poll() is None, "it waits for rank 1"


@pytest.mark.slow
def test_two_processes_with_rank_1():
    """The first two processes form the group; the duplicate fails at the timeout."""
    port = free_port()
    first, second = (start(stay=60, **at(port, RANK=rank, WORLD_SIZE="2")) for rank in "01")
    with ended(first), ended(second):
        for process in (first, second):
            assert process.stdout.readline() == "joined\n"
        line = last_line(start(timeout=5, **at(port, RANK="1", WORLD_SIZE="2")))
        assert "another process that is rank 1 too" in line
        assert first.poll() is None and second.poll() is None


def test_unknown_setting_warns_with_nearest_name():
    process = start(**at(free_port(), RANK="0", WORLD_SIZE="1", CCL_WORKER_CONT="2"))
    with ended(process):
        out, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, out
    assert "CCL_WORKER_CONT is not a setting of this library" in out
    assert "did you mean CCL_WORKER_COUNT?" in out
