"""`torch-ccl run`: what ranks are told, what is shown of them, and how they end.

Most tests start the command in a process that has torch loaded already, and ranks that do without:
so that a run takes tenths of a second.
"""

import contextlib
import json
import multiprocessing
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launchers import clean_environment
from support.mpi_hosts import write_ssh
from support.virtual_hosts import KINDS, Host, enter_namespace, virtual_hosts
from torch_ccl.agent.cores import Core, cores, list_text, parse_list, shares
from torch_ccl.cli import host_agent
from torch_ccl.cli.run import DEFAULT_RSH, lay_out, with_one_name_for_this_host
from torch_ccl.endings import GRACE_S, End, Process, Tail, first_to_fail

BOUND_S = 60
forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["torch", "torch_ccl", "torch_ccl.cli.runner"])
COMMAND = str(Path(sys.executable).with_name("torch-ccl"))

PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def say(**facts):
    sys.stdout.write(json.dumps(facts) + "\\n")
def note(word):  # for other ranks, with our number; it appears as a whole
    with open(sys.argv[0] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[0] + ".new", sys.argv[0] + word)
def await_note(word):
    while not os.path.exists(sys.argv[0] + word):
        time.sleep(0.01)
    return int(open(sys.argv[0] + word).read())
def await_end(pid):
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.01)
"""


class Command:
    """`torch-ccl run` while it runs, and after."""

    def __init__(self, directory: Path):
        directory.mkdir(exist_ok=True)
        self.process: multiprocessing.Process
        self.stdout, self.stderr = directory / "stdout", directory / "stderr"
        for path in (self.stdout, self.stderr):
            path.write_text("")

    @property
    def out(self) -> str:
        return self.stdout.read_text()

    @property
    def err(self) -> str:
        return self.stderr.read_text()

    def said(self) -> list[dict]:
        """By ranks, in the order in which it was shown."""
        *whole, _ = self.out.split("\n")
        rows = [re.fullmatch(r"\[(\d+)\] (\{.*\})", line) for line in whole]
        return [{"by": int(row[1]), **json.loads(row[2])} for row in rows if row]

    def hear(self, count: int) -> list[dict]:
        end = time.monotonic() + BOUND_S
        while len(said := self.said()) < count:
            assert time.monotonic() < end, f"{self.out}\n{self.err}"
            time.sleep(0.01)
        return said

    def finish(self, bound_s: float = BOUND_S) -> int:
        self.process.join(bound_s)
        assert self.process.exitcode is not None, f"has not ended\n{self.out}\n{self.err}"
        return self.process.exitcode


def _main(command: Command, words: list[str], environment: dict, host: list[str]) -> None:
    directory = Path.cwd()
    for namespace in host:
        enter_namespace(namespace)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for fd, path in ((1, command.stdout), (2, command.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), fd)
    from torch_ccl.cli import app

    app(["run", *words])


@contextlib.contextmanager
def started(
    directory: Path, *words: str, host: Host | None = None, **environment: str
) -> Iterator[Command]:
    command = Command(directory)
    variables = clean_environment(**environment)
    if "OMP_NUM_THREADS" not in environment:
        del variables["OMP_NUM_THREADS"]
    namespaces = [f"/proc/{host.holder.pid}/ns/{kind}" for kind in KINDS] if host else []
    arguments = (command, list(words), variables, namespaces)
    process = forked.Process(target=_main, args=arguments)
    process.start()
    command.process = process
    try:
        yield command
    finally:
        process.kill()
        process.join()
        for row in command.said():  # what is left of them if a test fails
            for pid in (row[name] for name in ("pid", "child") if name in row):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def run(directory: Path, *words: str, **options) -> Command:
    with started(directory, *words, **options) as command:
        command.finish()
    return command


@pytest.fixture
def script(tmp_path):
    """script(text) is the path of a program of ranks."""

    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(PRELUDE + text)
        return str(path)

    return write


def is_gone(pid: int) -> bool:
    """Nothing of it runs any more; somebody may still have to reap it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def await_gone(pids: list[int], bound_s: float = 10) -> None:
    end = time.monotonic() + bound_s
    while left := [pid for pid in pids if not is_gone(pid)]:
        assert time.monotonic() < end, f"processes {left} are still there"
        time.sleep(0.01)


# ---- what ranks are told

TELL = """
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONUNBUFFERED")
say(told=[os.environ[name] for name in names], arguments=sys.argv[1:], file=sys.argv[0],
    cpus=sorted(os.sched_getaffinity(0)), threads=os.environ["OMP_NUM_THREADS"],
    directory=os.getcwd(), session=os.getsid(0) == os.getpid())
"""


def test_place_arguments_and_cores(tmp_path, script):
    cpus = sorted(os.sched_getaffinity(0))
    command = run(tmp_path, "-n", "2", script(TELL), "--lr", "3", "-n", "9")
    assert command.process.exitcode == 0, command.err
    said = sorted(command.said(), key=lambda row: row["by"])
    assert [row["told"] for row in said] == [[str(r), "2", str(r), "2", "1"] for r in range(2)]
    for row in said:
        assert row["arguments"] == ["--lr", "3", "-n", "9"]
        assert row["session"]
    if len(cpus) > 1:
        first, second = (set(row["cpus"]) for row in said)
        assert first and second and not first & second
        assert first | second == set(cpus)
        assert [int(row["threads"]) for row in said] == [
            share.size for share in shares(cores(cpus), 2)
        ]
    assert command.err == ""


@pytest.mark.slow
def test_cores_with_threads_bound_by_openmp(tmp_path, script):
    """torch has loaded OpenMP, which has bound the command itself to one core."""
    words = ["run", "-n", "1", script(TELL)]
    shown = subprocess.run(
        [COMMAND, *words],
        env=clean_environment(OMP_PROC_BIND="true"),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    said = json.loads(shown.stdout.removeprefix("[0] "))
    assert said["cpus"] == sorted(os.sched_getaffinity(0))


def test_what_the_user_sets_stays(tmp_path, script):
    command = run(tmp_path, "-n", "2", "--no-pin", script(TELL), OMP_NUM_THREADS="7")
    for row in command.said():
        assert row["cpus"] == sorted(os.sched_getaffinity(0))
        assert row["threads"] == "7"


def test_more_ranks_than_cores_are_not_pinned(tmp_path, script):
    count = len(os.sched_getaffinity(0))
    command = run(tmp_path, "-n", str(count + 1), script(TELL))
    assert len(command.said()) == count + 1
    assert all(len(row["cpus"]) == count for row in command.said())
    assert command.err.splitlines() == [
        f"torch-ccl run: host {socket.gethostname()}: {count + 1} ranks on {count} cores: "
        "not pinned"
    ]


def test_module_and_other_programs(tmp_path):
    (tmp_path / "tell.py").write_text(PRELUDE + TELL)
    command = run(tmp_path, "-n", "1", "-m", "tell", "-x", PYTHONPATH=str(tmp_path))
    assert command.said()[0]["arguments"] == ["-x"]
    command = run(tmp_path / "2", "-n", "1", "--no-python", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert command.out == "[0] 0 of 1\n"


MEET = """
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        others = [server.accept()[0].recv(100).decode() for _ in range(size - 1)]
    say(port=place[1], heard=others)
else:
    end = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection(place) as there:
                there.sendall(sys.argv[1].encode())
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)
    say(master=place[0])
"""


def test_jobs_at_once_have_ports_of_their_own(tmp_path, script):
    path = script(MEET)
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(started(tmp_path / f"{job}", "-n", "2", path, f"job {job}"))
            for job in range(4)
        ]
        assert [job.finish() for job in jobs] == [0] * 4
    found = [next(row for row in job.said() if row["by"] == 0) for job in jobs]
    assert [row["heard"] for row in found] == [[f"job {job}"] for job in range(4)]
    assert len({row["port"] for row in found}) == 4


def test_a_port_is_held_until_somebody_listens():
    """In a network of its own with eight ports, the kernel gives all but the held one."""
    ports = Path(sys.modules["torch_ccl.agent.cores"].__file__).with_name("ports.py")
    holder = f"""
import runpy, socket
open_port = runpy.run_path({str(ports)!r})["open_port"]
held = open_port(listening=False)
given = []
try:
    while True:
        given.append(socket.socket())
        given[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        given[-1].bind(("", 0))
except OSError:
    given.pop()
port = held.getsockname()[1]
assert port not in [each.getsockname()[1] for each in given]
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", port))
server.listen()
print(len(given))
given.pop().close()  # for the other end of a connection
socket.create_connection(("127.0.0.1", port)).close()
"""
    network = "ip link set lo up; echo 40000 40007 > /proc/sys/net/ipv4/ip_local_port_range"
    words = ["unshare", "--net", "sh", "-ec", f'{network}; exec "$@"', "sh", sys.executable]
    shown = subprocess.run(
        [*words, "-c", holder], capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert int(shown.stdout) == 7


# ---- what is shown of them


def test_whole_lines_and_the_last_one(tmp_path, script):
    text = """
for word in ("a", "b"):
    sys.stdout.write(word); sys.stdout.flush(); time.sleep(0.05)
sys.stdout.write("\\n\\n[x] end")
sys.stderr.write("err\\r\\nlast \\xe9")
"""
    command = run(tmp_path, "-n", "2", script(text))
    for rank in range(2):
        own = [line for line in command.out.split("\n") if line.startswith(f"[{rank}]")]
        assert own == [f"[{rank}] ab", f"[{rank}] ", f"[{rank}] [x] end"]
        assert f"[{rank}] err\r\n".encode() in command.stderr.read_bytes()
        assert f"[{rank}] last é\n".encode() in command.stderr.read_bytes()
    assert command.out.endswith("\n") and command.err.endswith("\n")


def test_nothing_is_lost_of_much(tmp_path, script):
    text = """
for i in range(20000):
    sys.stdout.write(f"{i} " + "x" * (i % 97) + "\\n")
    if i % 10 == 0:
        sys.stderr.write(f"{i}\\n")
"""
    command = run(tmp_path, "-n", "2", script(text))
    for rank in range(2):
        begin = f"[{rank}] "
        own = [line for line in command.out.splitlines() if line.startswith(begin)]
        assert own == [f"{begin}{i} " + "x" * (i % 97) for i in range(20000)]
        own = [line for line in command.err.splitlines() if line.startswith(begin)]
        assert own == [f"{begin}{i}" for i in range(0, 20000, 10)]


@pytest.mark.slow
def test_a_slow_reader_loses_nothing(tmp_path, script):
    """More than fits into all pipes and buffers on the way."""
    path = script("for i in range(100000): sys.stdout.write(f'{i:060}\\n')")
    words = [COMMAND, "run", "-n", "1", path]
    with subprocess.Popen(words, env=clean_environment(), stdout=subprocess.PIPE) as process:
        begin = process.stdout.read(1)
        time.sleep(2)
        lines = (begin + process.stdout.read()).splitlines()
    assert lines == [f"[0] {i:060}".encode() for i in range(100000)]


# ---- how they end

WAIT = """
child = subprocess.Popen(["sleep", "1000"])
say(pid=os.getpid(), child=child.pid, agent=os.getppid())
time.sleep(1000)
"""


def pids_of(said: list[dict]) -> list[int]:
    return [row[name] for row in said for name in ("pid", "child")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks(tmp_path, script, number):
    with started(tmp_path, "-n", "3", script(WAIT)) as command:
        said = command.hear(3)
        os.kill(command.process.pid, number)
        assert command.finish() == 128 + number
        await_gone([*pids_of(said), said[0]["agent"]], bound_s=3)
    assert command.err.splitlines()[-1] == f"torch-ccl run: stopped by {number.name}"
    assert command.err.count("KeyboardInterrupt") == (3 if number == signal.SIGINT else 0)


@pytest.mark.slow
def test_ranks_that_do_not_listen_are_killed(tmp_path, script):
    deaf = "for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n"
    with started(tmp_path, "-n", "2", script(deaf + WAIT)) as command:
        said = command.hear(2)
        os.kill(command.process.pid, signal.SIGINT)
        assert command.finish() == 130
        await_gone(pids_of(said), bound_s=3)


def test_a_second_signal_does_not_wait(tmp_path, script):
    deaf = "signal.signal(signal.SIGINT, lambda *_: say(heard=1))\n"
    with started(tmp_path, "-n", "2", script(deaf + WAIT)) as command:
        said = command.hear(2)
        os.kill(command.process.pid, signal.SIGINT)
        command.hear(4)
        os.kill(command.process.pid, signal.SIGINT)
        assert command.finish(bound_s=GRACE_S - 1) == 130
        await_gone(pids_of(said))


def test_no_rank_survives_the_command(tmp_path, script):
    with started(tmp_path, "-n", "3", script(WAIT)) as command:
        said = command.hear(3)
        os.kill(command.process.pid, signal.SIGKILL)
        await_gone([*pids_of(said), said[0]["agent"]])


def test_no_rank_survives_its_agent(tmp_path, script):
    with started(tmp_path, "-n", "2", script(WAIT)) as command:
        said = command.hear(2)
        os.kill(said[0]["agent"], signal.SIGKILL)
        await_gone([row["pid"] for row in said])
        assert command.finish() == 1
    assert "is lost, and with it rank 0, 1" in command.err


def test_nobody_waits_for_what_has_left_a_rank(tmp_path, script):
    """A daemon that holds its stdout; the line that the rank has not ended is still shown."""
    text = """
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
say(child=child.pid)
sys.stdout.write("last")
"""
    with started(tmp_path, "-n", "1", script(text)) as command:
        assert command.finish() == 0
        assert not is_gone(command.said()[0]["child"])
    assert command.out.endswith("[0] last\n")


def test_the_first_that_fails_is_shown_last(tmp_path, script):
    text = """
if rank == 1:
    try:
        raise KeyError("handled")
    except KeyError:
        import traceback
        traceback.print_exc()
    sys.stdout.flush()
    def slowly():
        note("failed")
        time.sleep(0.8)
        sys.stderr.write("cleaning up\\n")
    import atexit
    atexit.register(slowly)
    raise ValueError("the cause")
await_note("failed")  # the others fail later, but end earlier
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


def test_a_traceback_that_is_last_already_is_not_repeated(tmp_path, script):
    command = run(tmp_path, "-n", "2", script('if rank == 1: raise ValueError("alone")'))
    assert command.process.exitcode == 1
    assert command.err.count("ValueError: alone") == 1


FAIL_AFTER_RANK_1 = """
if rank == 0:
    await_end(await_note("begun"))
    sys.exit(7)
note("begun")
"""


def test_exit_code_of_the_first_that_fails(tmp_path, script):
    command = run(tmp_path, "-n", "2", script(FAIL_AFTER_RANK_1 + "sys.exit(6)"))
    assert command.process.exitcode == 6
    expected = f"torch-ccl run: rank 1 on host {socket.gethostname()} failed first: exit code 6\n"
    assert command.err == expected


def test_the_others_are_ended(tmp_path, script):
    """Although they do not fail by themselves."""
    text = """
say(pid=os.getpid())
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
"""
    with started(tmp_path, "-n", "2", script(text)) as command:
        said = command.hear(2)
        assert command.finish() == 137
        await_gone([row["pid"] for row in said], bound_s=3)
    assert command.err.endswith(
        f"torch-ccl run: rank 1 on host {socket.gethostname()} failed first: killed by SIGKILL\n"
    )


def test_who_failed_first():
    tails = {rank: Tail() for rank in range(4)}
    tails[1].add(b"Traceback (most recent call last):\nError\n")
    end = time.monotonic()

    def first(*ends: tuple[int, int, float]) -> int | None:
        rows = [End(rank, code, "host", end + later_s) for rank, code, later_s in ends]
        found = first_to_fail(rows, tails, {Process("a", 7): 2, Process("a", 8): 1})
        return found.rank if found else None

    assert first((0, 0, 1), (3, 0, 2)) is None
    assert first((0, 1, 1), (3, 1, 2)) == 0
    assert first((0, 1, 1), (1, 1, 2)) == 1  # its traceback came before
    assert first((1, 1, 1), (3, -signal.SIGKILL, 2)) == 3  # the others noticed before it was gone
    assert first((1, 1, 1), (3, -signal.SIGABRT, 2)) == 1  # an abort may be a consequence
    tails[1].add(b"DistBackendError: ccl: rank 0 (host a, pid 7) left group pair, but ...\n")
    assert first((1, 1, 1), (0, 1, 2)) == 1  # rank 2 has ended well, or we do not know
    assert first((1, 1, 1), (2, 1, 2)) == 2  # it says so
    tails[2].add(b"DistBackendError: ccl: rank 1 (host a, pid 8) died during ...\n")
    assert first((1, 1, 1), (2, 1, 2)) in (1, 2)  # each other, and no end


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
def test_bad_input(tmp_path, words, reason):
    command = run(tmp_path, *words)
    assert command.process.exitcode == 2
    assert (command.out, command.err) == ("", f"torch-ccl run: {reason}\n")


# ---- cores


def make_machine(root: Path, nodes: list[str], siblings: list[str]) -> None:
    for number, cpus in enumerate(nodes):
        node = root / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(cpus + "\n")
    for text in siblings:
        for cpu in parse_list(text):
            topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(text + "\n")


@pytest.fixture
def machine(tmp_path):
    """Two nodes of four cores with two threads each, numbered as Intel's are."""
    make_machine(tmp_path, ["0-3,8-11", "4-7,12-15"], [f"{k},{k + 8}" for k in range(8)])
    return tmp_path


def shares_text(root: Path, cpus: str, ranks: int) -> list[str]:
    return [list_text(share.cpus) for share in shares(cores(parse_list(cpus), root), ranks)]


@pytest.mark.parametrize(
    ("cpus", "ranks", "expected"),
    [
        ("0-15", 1, ["0-15"]),
        ("0-15", 2, ["0-3,8-11", "4-7,12-15"]),
        ("0-15", 3, ["0-1,8-9", "2-3,10-11", "4-7,12-15"]),  # none on two nodes
        ("0-15", 4, ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        ("0-15", 8, [f"{k},{k + 8}" for k in range(8)]),  # whole cores
        ("0-15", 16, [str(cpu) for k in (0, 4) for c in range(k, k + 4) for cpu in (c, c + 8)]),
        ("0-15", 17, []),
        ("2-6", 2, ["2-3", "4-6"]),  # what this process may use
        ("0-3", 2, ["0-1", "2-3"]),
        ("0,4-7", 4, ["0", "4-5", "6", "7"]),
        ("1,9", 2, ["1", "9"]),  # two threads of one core, if there is nothing else
    ],
)
def test_shares(machine, cpus, ranks, expected):
    assert shares_text(machine, cpus, ranks) == expected


def test_shares_of_several_nodes(tmp_path):
    make_machine(tmp_path, ["0-1", "2-3", "4-5", "6-7"], [str(k) for k in range(8)])
    assert shares_text(tmp_path, "0-7", 2) == ["0-3", "4-7"]
    assert shares_text(tmp_path, "0-7", 3) == ["0-3", "4-5", "6-7"]


def test_shares_where_the_kernel_tells_nothing(tmp_path):
    assert cores([0, 1], tmp_path) == [Core(0, (0,)), Core(0, (1,))]
    assert shares_text(tmp_path, "0-3", 2) == ["0-1", "2-3"]


# ---- several hosts


def test_blocks_of_ranks():
    assert lay_out(4, ["a", "b"]) == {"a": [0, 1], "b": [2, 3]}
    assert lay_out(5, ["a", "b"]) == {"a": [0, 1, 2], "b": [3, 4]}
    assert lay_out(3, ["a", "b", "a"]) == {"a": [0, 2], "b": [1]}
    assert lay_out(1, ["a", "b"]) == {"a": [0]}


def test_names_of_this_host(monkeypatch):
    monkeypatch.setattr(host_agent, "is_here", lambda host: host in ("127.0.0.1", "localhost", "a"))
    assert with_one_name_for_this_host(["localhost", "b", "a"]) == ["a", "b", "a"]
    assert with_one_name_for_this_host(["localhost", "b"]) == ["127.0.0.1", "b"]


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
def test_this_host_is_known(name, here):
    assert host_agent.is_here(name) == here


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with virtual_hosts(2) as hosts:
        hosts[0].ssh = tmp_path_factory.mktemp("ssh") / "ssh"
        write_ssh(hosts[0].ssh, hosts)
        yield hosts


@pytest.fixture
def over_hosts(hosts, tmp_path):
    """As `started`, on the first host, with something that stands for ssh."""

    def start(*words: str, **environment: str):
        return started(
            tmp_path,
            "--hosts",
            "h1,h2",
            *words,
            host=hosts[0],
            CCL_RSH=str(hosts[0].ssh),
            **environment,
        )

    return start


def test_ranks_over_hosts(over_hosts, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    awkward = """it's "so" $HOME `x`\n\\ end"""
    text = """
names = ("CCL_X", "MINE", "THEIRS", "UNSAID", "CCL_RSH")
say(host=socket.gethostname(), local=[os.environ[n] for n in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")],
    variables=[os.environ.get(name) for name in names], directory=os.getcwd())
"""
    with over_hosts(
        *("-n", "3", "--env", "MINE", "--env", "THEIRS=x y"),
        script(text + MEET),
        awkward,
        CCL_X=awkward,
        MINE="mine",
        UNSAID="unsaid",
    ) as command:
        assert command.finish() == 0, command.err
    said = sorted((row for row in command.said() if "host" in row), key=lambda row: row["by"])
    assert [row["host"] for row in said] == ["h1", "h1", "h2"]
    assert [row["local"] for row in said] == [["0", "2"], ["1", "2"], ["0", "1"]]
    assert said[0]["variables"] == [awkward, "mine", "x y", "unsaid", None]
    assert said[2]["variables"] == [awkward, "mine", "x y", None, None]
    assert {row["directory"] for row in said} == {str(tmp_path)}
    heard = next(row["heard"] for row in command.said() if "heard" in row)
    assert heard == [awkward] * 2
    masters = {row["by"]: row["master"] for row in command.said() if "master" in row}
    assert masters[1] == masters[2] and re.match(r"10\.77\.", masters[2])


def test_failure_on_another_host(over_hosts, script):
    text = "raise ValueError('there')"
    with over_hosts("-n", "2", script(FAIL_AFTER_RANK_1 + text)) as command:
        assert command.finish() == 1
    *_, error, last = command.err.splitlines()
    assert error == "[1] ValueError: there"
    assert last == "torch-ccl run: rank 1 on host h2 failed first: exit code 1"


def test_ctrl_c_over_hosts(over_hosts, script):
    with over_hosts("-n", "2", script(WAIT)) as command:
        said = command.hear(2)
        os.kill(command.process.pid, signal.SIGINT)
        assert command.finish() == 130
        await_gone(pids_of(said), bound_s=3)


def test_no_rank_survives_the_command_on_another_host(over_hosts, script):
    with over_hosts("-n", "2", script(WAIT)) as command:
        said = command.hear(2)
        os.kill(command.process.pid, signal.SIGKILL)
        await_gone(pids_of(said))


def advice(host: str, *rsh: str) -> str:
    trial = shlex.join([*rsh, host, f"{sys.executable} -V"])
    return f"; check --hosts, and that this works without a password: {trial}"


def test_an_unreachable_host_is_named(hosts, over_hosts, tmp_path, script):
    path = script(TELL)
    with over_hosts("-n", "3", "--hosts", "h1,h2,h9", path) as command:
        assert command.finish(bound_s=10) == 1
    assert command.said() == []
    reason = "torch-ccl run: host h9 cannot be reached: there is no host h9"
    (line,) = command.err.splitlines()
    assert line == reason + advice("h9", str(hosts[0].ssh))
    # What it tells to try works with a host that is there.
    trial = shlex.split(line.rpartition(": ")[2].replace("h9", "h2"))
    assert subprocess.check_output(trial, text=True, timeout=BOUND_S).startswith("Python 3")


@pytest.mark.parametrize("rsh", [DEFAULT_RSH, "ssh -p 2222 -o BatchMode=yes"])
def test_a_host_whose_name_nobody_knows(tmp_path, script, rsh):
    """What ssh says is passed on; the advice has the command that was used."""
    host = "no-such-host.invalid"
    options = [] if rsh == DEFAULT_RSH else ["--rsh", rsh]
    command = run(tmp_path, "-n", "1", "--hosts", host, *options, script(TELL))
    assert command.process.exitcode == 1
    (line,) = command.err.splitlines()
    assert line.startswith(f"torch-ccl run: host {host} cannot be reached: ssh: Could not resolve")
    assert line.endswith(advice(host, *shlex.split(rsh)))


def test_no_ssh(tmp_path, script):
    command = run(tmp_path, "-n", "1", "--hosts", "h9", "--rsh", "no-ssh -x", script(TELL))
    assert command.process.exitcode == 1
    assert command.err.splitlines() == [
        "torch-ccl run: host h9 cannot be reached: no-ssh: No such file or directory; "
        "install it, or name another command by --rsh"
    ]


@pytest.mark.slow
def test_a_host_that_never_answers(tmp_path, script):
    command = run(
        tmp_path, "-n", "1", "--hosts", "h9", "--rsh", "sh -c 'exec sleep 1000'", script(TELL)
    )
    assert command.process.exitcode == 1
    expected = "torch-ccl run: host h9 does not answer within 30 s"
    assert command.err.splitlines() == [expected + advice("h9", "sh", "-c", "exec sleep 1000")]


@pytest.mark.slow
def test_hosts_that_do_not_reach_each_other(tmp_path, hosts, over_hosts, script):
    hosts[1].link_down()
    try:
        with over_hosts("-n", "2", script(TELL)) as command:
            assert command.finish() == 1
    finally:
        hosts[1].link_up()
    assert command.err.startswith("torch-ccl run: host h2 cannot reach host h1, where rank 0 is,")
    assert len(command.err.splitlines()) == 1


# ---- through torch

ADD_UP = """
import torch, torch.distributed as dist, torch_ccl
torch_ccl.init()
x = torch.full((3,), float(rank))
dist.all_reduce(x)
say(host=socket.gethostname(), sum=x.tolist())
"""


def start_command(*words: str) -> subprocess.Popen:
    """In a fresh interpreter, as a user would."""
    return subprocess.Popen(
        [COMMAND, "run", *words],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_group(script):
    with start_command("-n", "2", script(ADD_UP)) as process:
        out, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, err
    assert [json.loads(line[4:])["sum"] for line in out.splitlines()] == [[1.0] * 3] * 2


@pytest.mark.slow
def test_two_jobs_at_once(script):
    path = script(ADD_UP)
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
def test_a_rank_fails_in_a_group(script, ending, code, how):
    """Its peers hear of it and fail, too; it is still the first."""
    text = f"if rank == 1: {ending}\ndist.barrier()\n"
    with start_command("-n", "3", script(ADD_UP + text)) as process:
        _, err = process.communicate(timeout=BOUND_S)
    assert process.returncode == code, err
    expected = f"torch-ccl run: rank 1 on host {socket.gethostname()} failed first: {how}"
    assert err.splitlines()[-1] == expected
    assert err.count("rank 1 (host") >= 2  # what the peers say


@pytest.mark.slow
def test_a_group_over_hosts(over_hosts, script):
    with over_hosts("-n", "4", script(ADD_UP)) as command:
        assert command.finish() == 0, command.err
    said = command.said()
    assert [row["sum"] for row in said] == [[6.0] * 3] * 4
    assert {row["host"] for row in said} == {"h1", "h2"}
