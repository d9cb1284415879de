"""`torch-ccl run`: signals, failures and exit codes."""

import os
import signal
import socket

import pytest
from support.run_command import (
    FAIL_AFTER_RANK_1,
    SLEEP,
    is_gone,
    pids_of,
    run,
    started,
    wait_for_exits,
)
from torch_ccl.exit_status import TERMINATE_GRACE_S


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_terminates_all_ranks(tmp_path, script, number):
    with started(tmp_path, "-n", "3", script(SLEEP)) as command:
        reports = command.wait_for_reports(3)
        os.kill(command.process.pid, number)
        assert command.finish() == 128 + number
        wait_for_exits([*pids_of(reports), reports[0]["agent"]], bound_s=3)
    assert command.err.splitlines()[-1] == f"torch-ccl run: stopped by {number.name}"
    assert command.err.count("KeyboardInterrupt") == (3 if number == signal.SIGINT else 0)


@pytest.mark.slow
def test_ranks_that_ignore_signals_are_killed(tmp_path, script):
    ignore_signals = "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
    with started(tmp_path, "-n", "2", script(ignore_signals + SLEEP)) as command:
        reports = command.wait_for_reports(2)
        os.kill(command.process.pid, signal.SIGINT)
        assert command.finish() == 130
        wait_for_exits(pids_of(reports), bound_s=3)


def test_a_second_signal_ends_the_command_at_once(tmp_path, script):
    ignore_signals = "signal.signal(signal.SIGINT, lambda *_: report(received=1))\n"
    with started(tmp_path, "-n", "2", script(ignore_signals + SLEEP)) as command:
        reports = command.wait_for_reports(2)
        os.kill(command.process.pid, signal.SIGINT)
        command.wait_for_reports(4)
        os.kill(command.process.pid, signal.SIGINT)
        assert command.finish(bound_s=TERMINATE_GRACE_S - 1) == 130
        wait_for_exits(pids_of(reports))


def test_ranks_die_with_the_command(tmp_path, script):
    with started(tmp_path, "-n", "3", script(SLEEP)) as command:
        reports = command.wait_for_reports(3)
        os.kill(command.process.pid, signal.SIGKILL)
        wait_for_exits([*pids_of(reports), reports[0]["agent"]])


def test_ranks_die_with_their_agent(tmp_path, script):
    with started(tmp_path, "-n", "2", script(SLEEP)) as command:
        reports = command.wait_for_reports(2)
        os.kill(reports[0]["agent"], signal.SIGKILL)
        wait_for_exits([row["pid"] for row in reports])
        assert command.finish() == 1
    assert f"lost the connection to host {socket.gethostname()} with ranks 0, 1" in command.err


def test_a_daemon_that_holds_stdout_does_not_delay_the_end(tmp_path, script):
    """The rank's unterminated last line is shown."""
    text = """
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
report(child=child.pid)
sys.stdout.write("last")
"""
    with started(tmp_path, "-n", "1", script(text)) as command:
        assert command.finish() == 0
        assert not is_gone(command.reports()[0]["child"])
    assert command.out.endswith("[0] last\n")


def test_the_error_that_came_first_is_shown_last(tmp_path, script):
    text = """
if rank == 1:
    try:
        raise KeyError("handled")
    except KeyError:
        import traceback
        traceback.print_exc()
    sys.stdout.flush()
    def slowly():
        write_marker("failed")
        time.sleep(0.8)
        sys.stderr.write("cleaning up\\n")
    import atexit
    atexit.register(slowly)
    raise ValueError("the cause")
wait_for_marker("failed")  # the others fail later, but end earlier
raise RuntimeError("a consequence")
"""
    command = run(tmp_path, "-n", "3", script(text))
    assert command.process.exitcode == 1
    lines = command.err.splitlines()
    last = lines[-1 - lines[::-1].index("[1] Traceback (most recent call last):") :]
    assert last[-3:] == [
        "[1] ValueError: the cause",
        "[1] cleaning up",
        f"torch-ccl run: rank 1 on host {socket.gethostname()} failed first: exit code 1",
    ]
    assert not any("handled" in line for line in last)
    assert command.err.count("RuntimeError: a consequence") == 2


def test_a_traceback_that_is_last_is_not_repeated(tmp_path, script):
    command = run(tmp_path, "-n", "2", script('if rank == 1: raise ValueError("alone")'))
    assert command.process.exitcode == 1
    assert command.err.count("ValueError: alone") == 1


def test_exit_code_is_that_of_the_first_failure(tmp_path, script):
    command = run(tmp_path, "-n", "2", script(FAIL_AFTER_RANK_1 + "sys.exit(6)"))
    assert command.process.exitcode == 6
    expected = f"torch-ccl run: rank 1 on host {socket.gethostname()} failed first: exit code 6\n"
    assert command.err == expected


def test_the_other_ranks_are_terminated_after_a_failure(tmp_path, script):
    """The other ranks do not fail by themselves."""
    text = """
report(pid=os.getpid())
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""
    with started(tmp_path, "-n", "2", script(text)) as command:
        reports = command.wait_for_reports(2)
        assert command.finish() == 137
        wait_for_exits([row["pid"] for row in reports], bound_s=3)
    assert command.err.endswith(
        f"torch-ccl run: rank 1 on host {socket.gethostname()} failed first: killed by SIGKILL\n"
    )
