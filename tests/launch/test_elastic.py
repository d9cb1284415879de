"""torchrun starts ranks again after a failure, and with more or fewer of them.

The training goes on from its last checkpoint, to the weights that it has without failures.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.applications import marked_processes
from support.launchers import clean_environment, ended, free_port
from support.parameters import slow
from support.resumable_training import Training, check_trained

SCRIPT = Path(__file__).with_name("elastic_training.py")
BOUND_S = 100
STEPS = 20
MARK = "ELASTIC_AGENT"  # an agent and its ranks have it in their environment


class Job:
    """A training in a directory, and its torchrun agents."""

    def __init__(self, directory: Path, faults: str = "", bound_s: float = BOUND_S):
        self.directory = directory
        self.arguments = [SCRIPT, directory, "--steps", STEPS, "--faults", faults]
        self.stack = contextlib.ExitStack()
        self.deadline = time.monotonic() + bound_s

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stack.close()

    def start_agent(self, name: str, *options: str) -> subprocess.Popen:
        """The agent looks for failures ten times a second."""
        own = ["--monitor-interval", "0.1", *options, *self.arguments]
        words = [sys.executable, "-m", "torch.distributed.run", *map(str, own)]
        # Else agents keep the store's address of the first round, and a later agent waits for it.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if "--nnodes" in options else {}
        environment = clean_environment(**{MARK: f"{name} {self.directory}"}, **own_store)
        with (self.directory / f"{name}.log").open("w") as log:
            agent = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
        return self.stack.enter_context(ended(agent))

    def kill_agent(self, name: str) -> None:
        """The agent and its ranks, as when their host is lost."""
        mark = f"{MARK}={name} {self.directory}"
        while processes := marked_processes(mark):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            assert time.monotonic() < self.deadline
            time.sleep(0.01)

    def allow(self, steps: int) -> None:
        new = self.directory / "limit.new"
        new.write_text(str(steps))
        new.replace(self.directory / "limit")

    def progress(self) -> list[dict]:
        path = self.directory / "progress"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_until(self, reached: Callable[[list[dict]], bool]) -> None:
        while not reached(self.progress()):
            assert time.monotonic() < self.deadline, f"{self.progress()}\n{self.logs()}"
            time.sleep(0.05)

    def finish(self, agent: subprocess.Popen) -> None:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = agent.wait(max(0.1, self.deadline - time.monotonic()))
        assert code == 0, f"exit code {code}\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.directory.glob("*.log"))

    def check_result(self) -> None:
        training = Training()
        training.load(self.directory / "checkpoint")
        check_trained(training, STEPS)


def starts_of(lines: list[dict], rank: int) -> list[list[int]]:
    """The first line of each of its processes, and the steps that it took."""
    steps: dict[int, list[int]] = {}
    for line in lines:
        if line["rank"] == rank:
            steps.setdefault(line["pid"], []).append(line["step"])
    return list(steps.values())


def steps_between(*ends: int) -> list[list[int]]:
    """steps_between(0, 5, 20) is [[0, 1, ..., 5], [5, 6, ..., 20]]."""
    return [list(range(a, b + 1)) for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    ("faults", "ends"),
    [
        ("kill@5", (0, 5, STEPS)),
        slow("raise@5", (0, 5, STEPS)),
        slow("kill@5,raise@5,kill@9", (0, 5, 5, 9, STEPS)),
    ],
)
def test_restarts(tmp_path, faults, ends):
    with Job(tmp_path, faults) as job:
        options = ["--nproc-per-node", "2", "--max-restarts", str(faults.count("@"))]
        job.finish(job.start_agent("a", "--standalone", "--local-addr=127.0.0.1", *options))
        assert starts_of(job.progress(), 0) == steps_between(*ends)
        assert starts_of(job.progress(), 1) == steps_between(*ends)
        job.check_result()


@pytest.mark.slow
def test_restarts_end_after_max_restarts(tmp_path):
    with Job(tmp_path, "kill@5,kill@9") as job:
        options = ["--nproc-per-node", "2", "--max-restarts", "1"]
        agent = job.start_agent("a", "--standalone", "--local-addr=127.0.0.1", *options)
        assert agent.wait(BOUND_S) == 1
        assert "Signal 9 (SIGKILL)" in job.logs()
        assert starts_of(job.progress(), 0) == steps_between(0, 5, 9)


@pytest.mark.slow
@pytest.mark.timeout(2 * BOUND_S)
@pytest.mark.parametrize("leaves", ["killed", "SIGTERM"])
def test_the_number_of_agents_changes(tmp_path, leaves):
    """--nnodes 1:2: one agent, then two, then one. A lost agent is noticed after 10 s."""
    with Job(tmp_path, bound_s=2 * BOUND_S - 20) as job:
        port = free_port()
        rendezvous = [
            *("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
            *("--rdzv-conf", "last_call_timeout=1,keep_alive_interval=2,keep_alive_max_attempt=5"),
            "--local-addr=127.0.0.1",
        ]
        job.allow(5)
        first = job.start_agent("a", *rendezvous)
        job.wait_until(lambda lines: any(line["step"] == 5 for line in lines))
        second = job.start_agent("b", *rendezvous)
        job.wait_until(lambda lines: lines[-1]["size"] == 2)
        job.allow(8)
        job.wait_until(lambda lines: lines[-1]["step"] == 8)
        if leaves == "killed":
            job.kill_agent("b")
        else:
            second.terminate()
            assert second.wait(BOUND_S) != 0
        job.allow(STEPS)
        job.finish(first)
        sizes = [line["size"] for line in job.progress() if line["rank"] == 0]
        assert [size for size, _ in itertools.groupby(sizes)] == [1, 2, 1]
        job.check_result()
