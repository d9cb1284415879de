"""Runs a script on ranks on virtual hosts: one new interpreter each, started as by a launcher.

    with started_ranks(hosts, [2, 1], SCRIPT) as ranks:
        ranks[2].process.kill()
        assert "rank 2" in ranks[0].wait_for_report()["message"]

A script has torch, dist, `rank`, `size` and an initialised default group; report(name=value) sends
a value to the test. BACKEND in the environment names another backend, to check a test itself.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.rank_environments import rank_environments
from support.virtual_hosts import Host

BOUND_S = 60
BACKEND = os.environ.get("BACKEND", "ccl")

SCRIPT_HEADER = """
import faulthandler, json, os, sys, time
from datetime import timedelta
faulthandler.dump_traceback_later(BOUND_S, exit=True)
import torch
import torch.distributed as dist
import torch_ccl
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def report(**values):
    sys.stdout.write(json.dumps(values) + "\\n")
    sys.stdout.flush()
dist.init_process_group("BACKEND", timeout=timedelta(seconds=30))
"""


@dataclass
class ScriptRank:
    number: int
    host: Host
    process: subprocess.Popen
    out: Path
    err: Path

    def reports(self) -> list[dict]:
        *whole, _ = self.out.read_text().split("\n")
        return [json.loads(line) for line in whole]

    def wait_for_report(self, count: int = 1, bound_s: float = BOUND_S) -> dict:
        """Waits for the count-th report of the rank."""
        end = time.monotonic() + bound_s
        while len(reports := self.reports()) < count:
            assert self.process.poll() is None, f"rank {self.number} exited\n{self.err.read_text()}"
            assert time.monotonic() < end, f"rank {self.number} reported only {reports}"
            time.sleep(0.01)
        return reports[count - 1]

    def finish(self, bound_s: float = BOUND_S) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(bound_s)
        code = self.process.poll()
        assert code == 0, f"rank {self.number}: exit code {code}\n{self.err.read_text()}"


@contextlib.contextmanager
def started_ranks(
    hosts: list[Host], layout: list[int], script: str, **environment: str
) -> Iterator[list[ScriptRank]]:
    """Leaving the block kills ranks that still run."""
    header = SCRIPT_HEADER.replace("BOUND_S", str(BOUND_S)).replace("BACKEND", BACKEND)
    ranks: list[ScriptRank] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for host, own in rank_environments(hosts, layout, **environment):
                number = len(ranks)
                out, err = (Path(directory) / f"{number}.{name}" for name in ("out", "err"))
                words = [sys.executable, "-c", header + script]
                with out.open("w") as stdout, err.open("w") as stderr:
                    process = host.start(words, env=own, stdout=stdout, stderr=stderr)
                ranks.append(ScriptRank(number, host, process, out, err))
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait()


def run_ranks(
    hosts: list[Host], layout: list[int], script: str, **environment: str
) -> list[list[dict]]:
    """Returns the reports of every rank; every rank must exit with 0."""
    with started_ranks(hosts, layout, script, **environment) as ranks:
        for rank in ranks:
            rank.finish()
        return [rank.reports() for rank in ranks]
