"""64 ranks on four hosts start, run an all_reduce and exit, on two cores."""

import json
import sys
import time

import pytest
from support.host_conformance import conformance
from support.rank_environments import rank_environments
from support.virtual_hosts import virtual_hosts

HOSTS = 4
RANKS = 64
BOUND_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(BOUND_S + 30)]


@pytest.fixture(scope="module")
def hosts():
    with virtual_hosts(HOSTS) as hosts:
        yield hosts


def test_cpp_ranks(hosts):
    host_of = [rank * HOSTS // RANKS for rank in range(RANKS)]
    begun = time.monotonic()
    conformance(hosts, host_of, 1, "--ops", "barrier", "--watchdog", BOUND_S)
    spent = time.monotonic() - begun
    print(f"{RANKS} ranks over {HOSTS} hosts start, make their groups and end in {spent:.1f} s")
    conformance(hosts, host_of, 20, "--watchdog", BOUND_S)


# A rank writes each line by one write().
PARENT = """
import faulthandler, json, os, sys, time, traceback
import torch
import torch.distributed as dist

def be_rank(rank, local_rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
    begun = time.monotonic()
    dist.init_process_group("ccl")
    size = dist.get_world_size()
    x = torch.full((1000,), float(rank))
    dist.all_reduce(x)
    ready = time.monotonic()
    assert (x == size * (size - 1) / 2).all(), x
    dist.destroy_process_group()
    report = {"rank": rank, "begun": begun, "ready": ready, "ended": time.monotonic()}
    os.write(1, (json.dumps(report) + "\\n").encode())

first, count, bound_s = map(int, sys.argv[1:])
children = []
for local_rank in range(count):
    if (pid := os.fork()) == 0:
        faulthandler.dump_traceback_later(bound_s, exit=True)
        code = 1
        try:
            be_rank(first + local_rank, local_rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    children.append(pid)
sys.exit(any([os.waitpid(pid, 0)[1] for pid in children]))
"""


def test_torch_ranks_forked_from_one_parent_per_host(hosts, tmp_path):
    local = RANKS // HOSTS
    parents = []
    for host, environment in rank_environments(hosts, [1] * HOSTS, WORLD_SIZE=str(RANKS)):
        out, err = tmp_path / f"{host.name}.out", tmp_path / f"{host.name}.err"
        numbers = [str(local * len(parents)), str(local), str(BOUND_S)]
        words = [sys.executable, "-c", PARENT, *numbers]
        with out.open("w") as stdout, err.open("w") as stderr:
            process = host.start(words, env=environment, stdout=stdout, stderr=stderr)
        parents.append((process, out, err))
    end = time.monotonic() + BOUND_S
    for process, _, err in parents:
        code = process.wait(max(0, end - time.monotonic()))
        assert code == 0, err.read_text()[-4000:]
    printed = [json.loads(line) for _, out, _ in parents for line in out.read_text().splitlines()]
    assert sorted(each["rank"] for each in printed) == list(range(RANKS))
    first, last = min(each["begun"] for each in printed), max(each["ready"] for each in printed)
    ended = max(each["ended"] for each in printed)
    print(
        f"{RANKS} ranks over {HOSTS} hosts: {last - first:.1f} s from the first fork to the last "
        f"sum, {ended - last:.1f} s until all have left"
    )
