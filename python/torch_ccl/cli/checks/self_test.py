"""Starts two ranks on this host and lets them run an all_reduce."""

import sys
import time

from torch_ccl.cli.checks.finding import OK, PROBLEM, Finding, Machine
from torch_ccl.cli.job import Job
from torch_ccl.cli.runner import Runner
from torch_ccl.launchers import LOOPBACK

# The first use may compile the extension, which takes a minute on an idle machine.
TIMEOUT_S = 300.0
SCRIPT = """
import torch, torch.distributed as dist, torch_ccl
x = torch.full((1000,), float(torch_ccl.init().rank + 1))
dist.all_reduce(x)
assert x.eq(3).all(), x
"""


class CollectedOutput:
    """The ranks' output, for a finding."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, _stream: int, _prefix: str, lines: bytes) -> None:
        self.lines += lines.decode(errors="replace").splitlines()


def check_two_ranks(_machine: Machine) -> Finding:
    output = CollectedOutput()
    began = time.monotonic()
    job = Job([sys.executable, "-c", SCRIPT], {LOOPBACK: [0, 1]})
    exit_code = Runner(job, output).run(timeout_s=TIMEOUT_S)
    if exit_code == 0:
        took_s = time.monotonic() - began
        return Finding(OK, f"all_reduce on two ranks of this host: {took_s:.1f} s including start")
    last_lines = " / ".join(output.lines[-2:])
    found = f"all_reduce on two ranks of this host failed: {last_lines}"
    return Finding(PROBLEM, found, "run torch-ccl run -n 2 with a script to see all output")
