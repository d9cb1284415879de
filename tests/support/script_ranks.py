"""Scripts as ranks on virtual hosts: one process each, started as a launcher would.

    with started_ranks(hosts, [2, 1], SCRIPT) as ranks:
        ranks[2].process.kill()
        assert "rank 2" in ranks[0].hear()["message"]

A script finds torch, dist, `rank`, `size` and the default group made; say(name=value) is heard by
the test. BACKEND in the environment puts another backend in our place, to try a test itself.
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

PRELUDE = """
import faulthandler, json, os, sys, time
from datetime import timedelta
faulthandler.dump_traceback_later(BOUND_S, exit=True)
import torch
import torch.distributed as dist
import torch_ccl
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def say(**facts):
    sys.stdout.write(json.dumps(facts) + "\\n")
    sys.stdout.flush()
dist.init_process_group("BACKEND", timeout=timedelta(seconds=30))
"""


@dataclass
class Rank:
    number: int
    host: Host
    process: subprocess.Popen
    out: Path
    err: Path

    def said(self) -> list[dict]:
        *whole, _ = self.out.read_text().split("\n")
        return [json.loads(line) for line in whole]

    def hear(self, count: int = 1, bound_s: float = BOUND_S) -> dict:
        """What it says as the count-th."""
        end = time.monotonic() + bound_s
        while len(said := self.said()) < count:
            assert self.process.poll() is None, f"rank {self.number} ended\n{self.err.read_text()}"
            assert time.monotonic() < end, f"rank {self.number} says {said}, and no more"
            time.sleep(0.01)
        return said[count - 1]

    def finish(self, bound_s: float = BOUND_S) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(bound_s)
        code = self.process.poll()
        assert code == 0, f"rank {self.number}: exit code {code}\n{self.err.read_text()}"


@contextlib.contextmanager
def started_ranks(
    hosts: list[Host], layout: list[int], script: str, **environment: str
) -> Iterator[list[Rank]]:
    """Ends what is left of them."""
    prelude = PRELUDE.replace("BOUND_S", str(BOUND_S)).replace("BACKEND", BACKEND)
    ranks: list[Rank] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for host, own in rank_environments(hosts, layout, **environment):
                number = len(ranks)
                out, err = (Path(directory) / f"{number}.{name}" for name in ("out", "err"))
                words = [sys.executable, "-c", prelude + script]
                with out.open("w") as stdout, err.open("w") as stderr:
                    process = host.start(words, env=own, stdout=stdout, stderr=stderr)
                ranks.append(Rank(number, host, process, out, err))
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait()


def run_ranks(
    hosts: list[Host], layout: list[int], script: str, **environment: str
) -> list[list[dict]]:
    """What the ranks said; all must end well."""
    with started_ranks(hosts, layout, script, **environment) as ranks:
        for rank in ranks:
            rank.finish()
        return [rank.said() for rank in ranks]
