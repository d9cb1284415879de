"""`torch-ccl run --hosts`: ranks on virtual hosts, and hosts that cannot be reached."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from support.run_command import (
    BOUND_S,
    CONNECT_TO_RANK_0,
    FAIL_AFTER_RANK_1,
    REPORT_ENVIRONMENT,
    SLEEP,
    pids_of,
    run,
    wait_for_exits,
)
from torch_ccl.cli import host_agent
from torch_ccl.cli.run import DEFAULT_RSH, assign_ranks, merge_names_of_this_host


def test_assign_ranks():
    assert assign_ranks(4, ["a", "b"]) == {"a": [0, 1], "b": [2, 3]}
    assert assign_ranks(5, ["a", "b"]) == {"a": [0, 1, 2], "b": [3, 4]}
    assert assign_ranks(3, ["a", "b", "a"]) == {"a": [0, 2], "b": [1]}
    assert assign_ranks(1, ["a", "b"]) == {"a": [0]}


def test_merge_names_of_this_host(monkeypatch):
    monkeypatch.setattr(
        host_agent, "is_this_host", lambda host: host in ("127.0.0.1", "localhost", "a")
    )
    assert merge_names_of_this_host(["localhost", "b", "a"]) == ["a", "b", "a"]
    assert merge_names_of_this_host(["localhost", "b"]) == ["127.0.0.1", "b"]


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("192.0.2.77", False),
        ("no-such-host.invalid", False),
        ("somebody@localhost", False),  # as somebody else
    ],
)
def test_is_this_host(name, here):
    assert host_agent.is_this_host(name) == here


def test_ranks_over_hosts(over_hosts, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    awkward = """it's "so" $HOME `x`\n\\ end"""
    text = """
names = ("CCL_X", "MINE", "THEIRS", "UNSAID", "CCL_RSH")
report(host=socket.gethostname(), local=[os.environ[n] for n in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")],
    variables=[os.environ.get(name) for name in names], directory=os.getcwd())
"""
    with over_hosts(
        *("-n", "3", "--env", "MINE", "--env", "THEIRS=x y"),
        script(text + CONNECT_TO_RANK_0),
        awkward,
        CCL_X=awkward,
        MINE="mine",
        UNSAID="unsaid",
    ) as command:
        assert command.finish() == 0, command.err
    reports = sorted(
        (row for row in command.reports() if "host" in row), key=lambda row: row["rank"]
    )
    assert [row["host"] for row in reports] == ["h1", "h1", "h2"]
    assert [row["local"] for row in reports] == [["0", "2"], ["1", "2"], ["0", "1"]]
    assert reports[0]["variables"] == [awkward, "mine", "x y", "unsaid", None]
    assert reports[2]["variables"] == [awkward, "mine", "x y", None, None]
    assert {row["directory"] for row in reports} == {str(tmp_path)}
    received = next(row["received"] for row in command.reports() if "received" in row)
    assert received == [awkward] * 2
    masters = {row["rank"]: row["master"] for row in command.reports() if "master" in row}
    assert masters[1] == masters[2] and re.match(r"10\.77\.", masters[2])


def test_failure_on_another_host(over_hosts, script):
    text = "raise ValueError('there')"
    with over_hosts("-n", "2", script(FAIL_AFTER_RANK_1 + text)) as command:
        assert command.finish() == 1
    *_, error, last = command.err.splitlines()
    assert error == "[1] ValueError: there"
    assert last == "torch-ccl run: rank 1 on host h2 failed first: exit code 1"


def test_ctrl_c_over_hosts(over_hosts, script):
    with over_hosts("-n", "2", script(SLEEP)) as command:
        reports = command.wait_for_reports(2)
        os.kill(command.process.pid, signal.SIGINT)
        assert command.finish() == 130
        wait_for_exits(pids_of(reports), bound_s=3)


def test_ranks_on_other_hosts_die_with_the_command(over_hosts, script):
    with over_hosts("-n", "2", script(SLEEP)) as command:
        reports = command.wait_for_reports(2)
        os.kill(command.process.pid, signal.SIGKILL)
        wait_for_exits(pids_of(reports))


def advice(host: str, *rsh: str) -> str:
    trial = shlex.join([*rsh, host, f"{sys.executable} -V"])
    return f"; check --hosts, and that this works without a password: {trial}"


def test_an_unreachable_host_is_named(hosts, over_hosts, tmp_path, script):
    path = script(REPORT_ENVIRONMENT)
    with over_hosts("-n", "3", "--hosts", "h1,h2,h9", path) as command:
        assert command.finish(bound_s=10) == 1
    assert command.reports() == []
    reason = "torch-ccl run: host h9 cannot be reached: there is no host h9"
    (line,) = command.err.splitlines()
    assert line == reason + advice("h9", str(hosts[0].ssh))
    # What it tells to try works with a host that is there.
    trial = shlex.split(line.rpartition(": ")[2].replace("h9", "h2"))
    assert subprocess.check_output(trial, text=True, timeout=BOUND_S).startswith("Python 3")


@pytest.mark.parametrize("rsh", [DEFAULT_RSH, "ssh -p 2222 -o BatchMode=yes"])
def test_a_host_name_that_does_not_resolve(tmp_path, script, rsh):
    """What ssh says is passed on; the advice has the command that was used."""
    host = "no-such-host.invalid"
    options = [] if rsh == DEFAULT_RSH else ["--rsh", rsh]
    command = run(tmp_path, "-n", "1", "--hosts", host, *options, script(REPORT_ENVIRONMENT))
    assert command.process.exitcode == 1
    (line,) = command.err.splitlines()
    assert line.startswith(f"torch-ccl run: host {host} cannot be reached: ssh: Could not resolve")
    assert line.endswith(advice(host, *shlex.split(rsh)))


def test_a_missing_rsh_command(tmp_path, script):
    command = run(
        tmp_path, "-n", "1", "--hosts", "h9", "--rsh", "no-ssh -x", script(REPORT_ENVIRONMENT)
    )
    assert command.process.exitcode == 1
    assert command.err.splitlines() == [
        "torch-ccl run: host h9 cannot be reached: no-ssh: No such file or directory; "
        "install it, or choose another command with --rsh"
    ]


@pytest.mark.slow
def test_a_host_that_never_answers(tmp_path, script):
    command = run(
        tmp_path,
        "-n",
        "1",
        "--hosts",
        "h9",
        "--rsh",
        "sh -c 'exec sleep 1000'",
        script(REPORT_ENVIRONMENT),
    )
    assert command.process.exitcode == 1
    expected = "torch-ccl run: host h9 did not answer within 30 s"
    assert command.err.splitlines() == [expected + advice("h9", "sh", "-c", "exec sleep 1000")]


@pytest.mark.slow
def test_hosts_that_cannot_reach_each_other(tmp_path, hosts, over_hosts, script):
    hosts[1].link_down()
    try:
        with over_hosts("-n", "2", script(REPORT_ENVIRONMENT)) as command:
            assert command.finish() == 1
    finally:
        hosts[1].link_up()
    assert command.err.startswith("torch-ccl run: host h2 cannot reach host h1, where rank 0 is,")
    assert len(command.err.splitlines()) == 1
