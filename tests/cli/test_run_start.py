"""`torch-ccl run`: variables, arguments, CPUs and ports of the ranks, and invalid options."""

import contextlib
import json
import os
import socket
import subprocess

import pytest
from support.launchers import clean_environment
from support.run_command import (
    BOUND_S,
    COMMAND,
    CONNECT_TO_RANK_0,
    REPORT_ENVIRONMENT,
    SCRIPT_HEADER,
    run,
    started,
)
from torch_ccl.agent.cores import cores_of, split_cores


def test_rank_variables_arguments_and_cores(tmp_path, script):
    cpus = sorted(os.sched_getaffinity(0))
    command = run(tmp_path, "-n", "2", script(REPORT_ENVIRONMENT), "--lr", "3", "-n", "9")
    assert command.process.exitcode == 0, command.err
    reports = sorted(command.reports(), key=lambda row: row["rank"])
    assert [row["rank_variables"] for row in reports] == [
        [str(r), "2", str(r), "2", "1"] for r in range(2)
    ]
    for row in reports:
        assert row["arguments"] == ["--lr", "3", "-n", "9"]
        assert row["session"]
    if len(cpus) > 1:
        first, second = (set(row["cpus"]) for row in reports)
        assert first and second and not first & second
        assert first | second == set(cpus)
        assert [int(row["threads"]) for row in reports] == [
            share.threads for share in split_cores(cores_of(cpus), 2)
        ]
    assert command.err == ""


@pytest.mark.slow
def test_cores_with_threads_bound_by_openmp(tmp_path, script):
    """OMP_PROC_BIND must not bind the command itself, and through it the ranks, to one core."""
    words = ["run", "-n", "1", script(REPORT_ENVIRONMENT)]
    shown = subprocess.run(
        [COMMAND, *words],
        env=clean_environment(OMP_PROC_BIND="true"),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    report = json.loads(shown.stdout.removeprefix("[0] "))
    assert report["cpus"] == sorted(os.sched_getaffinity(0))


def test_no_pin_and_omp_num_threads_of_the_user(tmp_path, script):
    command = run(tmp_path, "-n", "2", "--no-pin", script(REPORT_ENVIRONMENT), OMP_NUM_THREADS="7")
    for row in command.reports():
        assert row["cpus"] == sorted(os.sched_getaffinity(0))
        assert row["threads"] == "7"


def test_more_ranks_than_cpus_are_not_pinned(tmp_path, script):
    count = len(os.sched_getaffinity(0))
    command = run(tmp_path, "-n", str(count + 1), script(REPORT_ENVIRONMENT))
    assert len(command.reports()) == count + 1
    assert all(len(row["cpus"]) == count for row in command.reports())
    assert command.err.splitlines() == [
        f"torch-ccl run: host {socket.gethostname()}: {count + 1} ranks on {count} CPUs: not pinned"
    ]


def test_module_and_other_programs(tmp_path):
    (tmp_path / "report.py").write_text(SCRIPT_HEADER + REPORT_ENVIRONMENT)
    command = run(tmp_path, "-n", "1", "-m", "report", "-x", PYTHONPATH=str(tmp_path))
    assert command.reports()[0]["arguments"] == ["-x"]
    command = run(tmp_path / "2", "-n", "1", "--no-python", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert command.out == "[0] 0 of 1\n"


def test_concurrent_jobs_use_different_ports(tmp_path, script):
    path = script(CONNECT_TO_RANK_0)
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(started(tmp_path / f"{job}", "-n", "2", path, f"job {job}"))
            for job in range(4)
        ]
        assert [job.finish() for job in jobs] == [0] * 4
    found = [next(row for row in job.reports() if row["rank"] == 0) for job in jobs]
    assert [row["received"] for row in found] == [[f"job {job}"] for job in range(4)]
    assert len({row["port"] for row in found}) == 4


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-n", "0", __file__], "-n 0: there must be at least one rank"),
        (["-n", "2", "no_such.py"], "there is no script no_such.py"),
        (["-n", "2", "--no-python", "no-such"], "there is no program no-such"),
        (["-n", "2", "--hosts", "a,,b", __file__], '--hosts a,,b: "" is not a host'),
        (["-n", "2", "--hosts", "-oX=y", __file__], '--hosts -oX=y: "-oX=y" is not a host'),
        (
            ["-n", "2", "--env", "NO_SUCH", __file__],
            "--env NO_SUCH: there is no such variable; NAME=VALUE sets one",
        ),
    ],
)
def test_invalid_options(tmp_path, words, reason):
    command = run(tmp_path, *words)
    assert command.process.exitcode == 2
    assert (command.out, command.err) == ("", f"torch-ccl run: {reason}\n")
