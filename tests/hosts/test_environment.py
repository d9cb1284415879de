"""oneCCL's variables, and those of libfabric in scripts for it, over several hosts."""

import re

import pytest
from support.script_ranks import started_ranks
from support.virtual_hosts import virtual_hosts

SUM = """
x = torch.full((100_000,), rank + 1.0)
dist.all_reduce(x)
assert x.eq(size * (size + 1) / 2).all()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def hosts():
    with virtual_hosts(2) as made:
        yield made


def log_of(hosts, **variables: str) -> list[str]:
    """Level and text of the log lines of a job of 2 x 2 ranks whose sum is right."""
    with started_ranks(hosts, [2, 2], SUM, CCL_LOG_LEVEL="info", **variables) as ranks:
        for rank in ranks:
            rank.finish()
        lines = [line for rank in ranks for line in rank.err.read_text().splitlines()]
    return [re.sub(r".* (?=(warn|info): )", "", line) for line in lines if "tccl" in line]


def test_the_group_is_described(hosts):
    (line,) = log_of(hosts, CCL_ALLREDUCE="ring", CCL_ATL_TRANSPORT="mpi")
    assert re.match(
        r"info: 4 ranks on 2 hosts \(\S+ 0,1; \S+ 2,3\); shared memory on a host, ", line
    )
    assert re.search(r"libfabric provider tcp\S* at [\d.]+ between hosts", line)
    assert "leader_allgather, from 32768 bytes rails for allreduce" in line


@pytest.mark.parametrize("providers", ["tcp,shm", "^efa"])
def test_lists_of_providers(hosts, providers):
    (line,) = log_of(hosts, FI_PROVIDER=providers)
    assert "libfabric provider tcp" in line


def test_providers_that_are_not_there(hosts):
    warning, description = sorted(log_of(hosts, FI_PROVIDER="psm3"), reverse=True)
    assert re.match(r"warn: FI_PROVIDER=psm3: not usable here; tcp\S* is used", warning)
    assert "libfabric provider tcp" in description


def test_interfaces_that_are_not_there(hosts):
    warning, _ = sorted(log_of(hosts, CCL_MNIC_NAME="mlx5_0"), reverse=True)
    assert warning.startswith("warn: CCL_MNIC_NAME or CCL_KVS_IFACE: no interface")


STARTED_PROGRAMS = """
x = torch.ones(3)
dist.all_reduce(x)
import os, pathlib, time
with open("/proc/self/net/tcp") as table:
    rows = [line.split() for line in table][1:]
listening = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
program = os.posix_spawn("/bin/sleep", ["sleep", "30"], os.environ)
while pathlib.Path(f"/proc/{program}/comm").read_text() != "sleep\\n":
    time.sleep(0.01)
own = {os.readlink(fd) for fd in pathlib.Path("/proc/self/fd").iterdir() if fd.is_symlink()}
theirs = {os.readlink(fd) for fd in pathlib.Path(f"/proc/{program}/fd").iterdir()}
os.kill(program, 9)
os.waitpid(program, 0)
assert listening & own, "this rank listens for other hosts"
assert not listening & theirs, "the program would keep the port in use"
dist.destroy_process_group()
"""


def test_started_programs_inherit_no_listening_socket(hosts):
    """Those of libfabric do not close by themselves when a rank starts a program."""
    with started_ranks(hosts, [1, 1], STARTED_PROGRAMS) as ranks:
        for rank in ranks:
            rank.finish()
