"""`torch-ccl run` in a test: starts the command, and reads what its ranks report.

The command runs in a forked process that has torch loaded already, and most scripts of ranks do not
import torch, so that a run takes tenths of a second.
"""

import contextlib
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support.launchers import clean_environment
from support.virtual_hosts import KINDS, Host, enter_namespace

BOUND_S = 60
forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["torch", "torch_ccl", "torch_ccl.cli.runner"])
COMMAND = str(Path(sys.executable).with_name("torch-ccl"))

#: Begins every script of ranks.
SCRIPT_HEADER = """
import json, os, signal, socket, subprocess, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def report(**values):
    sys.stdout.write(json.dumps(values) + "\\n")
def write_marker(word):  # a file with our pid; renamed, so that it is never partial
    with open(sys.argv[0] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(sys.argv[0] + ".new", sys.argv[0] + word)
def wait_for_marker(word):
    while not os.path.exists(sys.argv[0] + word):
        time.sleep(0.01)
    return int(open(sys.argv[0] + word).read())
def wait_for_exit(pid):
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.01)
"""


class Command:
    """A `torch-ccl run` process, while it runs and after it has ended."""

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

    def reports(self) -> list[dict]:
        """What ranks have reported, in the order of the command's output."""
        *whole, _ = self.out.split("\n")
        rows = [re.fullmatch(r"\[(\d+)\] (\{.*\})", line) for line in whole]
        return [{"rank": int(row[1]), **json.loads(row[2])} for row in rows if row]

    def wait_for_reports(self, count: int) -> list[dict]:
        end = time.monotonic() + BOUND_S
        while len(reports := self.reports()) < count:
            assert time.monotonic() < end, f"{self.out}\n{self.err}"
            time.sleep(0.01)
        return reports

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
    namespaces = [f"/proc/{host.namespace_process.pid}/ns/{kind}" for kind in KINDS] if host else []
    arguments = (command, list(words), variables, namespaces)
    process = forked.Process(target=_main, args=arguments)
    process.start()
    command.process = process
    try:
        yield command
    finally:
        process.kill()
        process.join()
        for row in command.reports():  # clean up after a test that failed
            for pid in (row[name] for name in ("pid", "child") if name in row):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def run(directory: Path, *words: str, **options) -> Command:
    with started(directory, *words, **options) as command:
        command.finish()
    return command


def is_gone(pid: int) -> bool:
    """Whether the process has ended; it may still be a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_for_exits(pids: list[int], bound_s: float = 10) -> None:
    end = time.monotonic() + bound_s
    while left := [pid for pid in pids if not is_gone(pid)]:
        assert time.monotonic() < end, f"processes {left} are still there"
        time.sleep(0.01)


# ---- scripts of ranks

REPORT_ENVIRONMENT = """
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONUNBUFFERED")
report(rank_variables=[os.environ[name] for name in names],
    arguments=sys.argv[1:], file=sys.argv[0],
    cpus=sorted(os.sched_getaffinity(0)), threads=os.environ["OMP_NUM_THREADS"],
    directory=os.getcwd(), session=os.getsid(0) == os.getpid())
"""

CONNECT_TO_RANK_0 = """
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", master[1])) as server:
        others = [server.accept()[0].recv(100).decode() for _ in range(size - 1)]
    report(port=master[1], received=others)
else:
    end = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection(master) as there:
                there.sendall(sys.argv[1].encode())
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)
    report(master=master[0])
"""

SLEEP = """
child = subprocess.Popen(["sleep", "1000"])
report(pid=os.getpid(), child=child.pid, agent=os.getppid())
time.sleep(1000)
"""

# An agent that finds that two ranks have ended cannot know which one ended first: it gets a second
# to notice the first one.
FAIL_AFTER_RANK_1 = """
if rank == 0:
    wait_for_exit(wait_for_marker("begun"))
    time.sleep(1)
    sys.exit(7)
write_marker("begun")
"""

ALL_REDUCE = """
import torch, torch.distributed as dist, torch_ccl
torch_ccl.init()
x = torch.full((3,), float(rank))
dist.all_reduce(x)
report(host=socket.gethostname(), sum=x.tolist())
"""


def pids_of(reports: list[dict]) -> list[int]:
    return [row[name] for row in reports for name in ("pid", "child")]
