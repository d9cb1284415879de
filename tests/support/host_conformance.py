"""Runs the conformance program with its ranks on virtual hosts. A rank enters only the network
namespace of its host: host name, boot_id and /dev/shm are the machine's."""

import re

from support.commands import BUILD_DIR, CommandResult, run
from support.virtual_hosts import Host

SEED = 1


def run_conformance(hosts: list[Host], host_of: list[int], cases: int, *options) -> CommandResult:
    """`host_of[rank]` is the index of the rank's host."""
    where = ["--namespaces", ",".join(host.path for host in hosts)]
    where += ["--host-of", ",".join(map(str, host_of))]
    what = ["--ranks", len(host_of), "--cases", cases, "--seed", SEED, *options]
    finished = run([BUILD_DIR / "tests/conformance", *what, *where])
    print(finished.output)
    return finished


def conformance(hosts: list[Host], host_of: list[int], cases: int, *options) -> None:
    """Fails unless all cases run and pass."""
    finished = run_conformance(hosts, host_of, cases, *options)
    closing = re.search(r"^conformance: P=\d+ cases=(\d+) failed=(\d+)", finished.output, re.M)
    assert finished.returncode == 0, finished.output[-4000:]
    assert closing, "no closing line"
    assert (int(closing[1]), int(closing[2])) == (cases, 0)
