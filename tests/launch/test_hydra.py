"""Ranks started by MPICH's mpiexec.hydra that say nothing but init_process_group("ccl")."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "compat"))
from launching import clean_environment

BOUND_S = 90


def start(ranks: int, script: str) -> subprocess.Popen:
    words = ["mpiexec.hydra", "-n", str(ranks), sys.executable, "-c", script]
    return subprocess.Popen(
        words,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(process: subprocess.Popen) -> list[str]:
    try:
        out, _ = process.communicate(timeout=BOUND_S)
    finally:
        process.kill()
    assert process.returncode == 0, out
    return sorted(out.splitlines())


ADD_UP = """
import sys, torch, torch_ccl, torch.distributed as dist

def say(line):  # in one piece, so that ranks do not mix theirs
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

dist.init_process_group("ccl")
x = torch.ones(1)
dist.all_reduce(x)
place = torch_ccl.get_dist_env()
say(f"{place.rank} of {place.world_size} by {place.launcher}: {x.item():g}")
"""
DESTROY = "dist.destroy_process_group()\n"


@pytest.mark.parametrize("ending", [DESTROY, "", "sys.exit(0)\n"])
def test_nothing_else_is_set(ending):
    expected = [f"{rank} of 3 by hydra: 3" for rank in range(3)]
    assert output_of(start(3, ADD_UP + ending)) == expected


def test_two_jobs_at_once_do_not_meet():
    jobs = [start(2, ADD_UP + DESTROY) for _ in range(2)]
    for job in jobs:
        assert output_of(job) == [f"{rank} of 2 by hydra: 2" for rank in range(2)]


def test_a_second_group_after_the_first():
    again = ADD_UP + DESTROY
    assert output_of(start(2, again + again)) == sorted(
        f"{rank} of 2 by hydra: 2" for rank in (0, 1) for _ in range(2)
    )


LEAVES_EARLY = """
import time
{add_up}
dist.destroy_process_group()
if place.rank == 1:
    sys.exit(0)
time.sleep(2)
say("still here")
"""


def test_a_rank_that_ends_early_ends_nobody_else():
    lines = output_of(start(3, LEAVES_EARLY.format(add_up=ADD_UP)))
    assert lines.count("still here") == 2


WORKERS = """
{add_up}
loader = torch.utils.data.DataLoader(
    list(range(64)), num_workers=2, persistent_workers=True, multiprocessing_context="fork"
)
batches = iter(loader)
next(batches)
say("with workers")
"""


def test_workers_of_a_data_loader_are_alive_at_the_end():
    assert output_of(start(2, WORKERS.format(add_up=ADD_UP))).count("with workers") == 2
