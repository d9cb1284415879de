"""Ranks started by MPICH, Intel MPI and Open MPI; scripts only call init_process_group("ccl")."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.launchers import (
    INTEL_MPI,
    MPICH,
    OPEN_MPI,
    OPEN_MPI_OPTIONS,
    clean_environment,
    free_port,
)
from support.parameters import slow

BOUND_S = 90


class Mpi(NamedTuple):
    words: tuple[str, ...]
    name: str  # the launcher's name in get_dist_env()
    library: Path  # for mpi4py, which loads libmpi.so.12, or .40 of Open MPI
    interface: str


LIBRARIES = Path("/usr/lib") / sys.implementation._multiarch
INTEL_LIBRARY = Path(INTEL_MPI).parents[1] / "lib/libmpi.so.12"
MPIS = {
    "MPICH": Mpi((MPICH,), "hydra", LIBRARIES / "libmpich.so.12", "mpich"),
    "Intel MPI": Mpi((INTEL_MPI,), "hydra", INTEL_LIBRARY, "impi"),
    "Open MPI": Mpi(
        (OPEN_MPI, *OPEN_MPI_OPTIONS), "Open MPI", LIBRARIES / "libmpi.so.40", "openmpi"
    ),
}


# tests/compat starts ranks by MPICH in `make test`, too.
@pytest.fixture(params=[slow(name) if name == "MPICH" else name for name in MPIS])
def mpi(request) -> Mpi:
    return MPIS[request.param]


def start(mpi: Mpi, ranks: int, script: str, **environment: str) -> subprocess.Popen:
    return start_words(mpi, ranks, [sys.executable, "-c", SAY + script], **environment)


def start_words(mpi: Mpi, ranks: int, words: list[str], **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*mpi.words, "-n", str(ranks), *words],
        env=clean_environment(**environment),
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


SAY = """
import sys

def say(line):  # one write, so that lines of ranks do not mix
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()
"""
ADD_UP = """
import torch, torch_ccl, torch.distributed as dist
dist.init_process_group("ccl")
x = torch.ones(1)
dist.all_reduce(x)
env = torch_ccl.get_dist_env()
say(f"{env.rank} of {env.world_size} by {env.launcher}: {x.item():g}")
"""
DESTROY = "dist.destroy_process_group()\n"


def expected(mpi: Mpi, ranks: int, groups: int = 1) -> list[str]:
    lines = [f"{rank} of {ranks} by {mpi.name}: {ranks}" for rank in range(ranks)]
    return sorted(lines * groups)


def test_no_variables_set(mpi):
    assert output_of(start(mpi, 2, ADD_UP + DESTROY)) == expected(mpi, 2)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "sys.exit(0)\n"])
def test_exit_without_destroy(mpi, ending):
    assert output_of(start(mpi, 2, ADD_UP + ending)) == expected(mpi, 2)


@pytest.mark.slow
def test_two_concurrent_jobs(mpi):
    jobs = [start(mpi, 2, ADD_UP + DESTROY) for _ in range(2)]
    for job in jobs:
        assert output_of(job) == expected(mpi, 2)


@pytest.mark.slow
def test_a_second_group_after_the_first(mpi):
    again = ADD_UP + DESTROY
    assert output_of(start(mpi, 2, again + again)) == expected(mpi, 2, groups=2)


LEAVES_EARLY = """
import time
{add_up}
dist.destroy_process_group()
if env.rank == 1:
    sys.exit(0)
time.sleep(2)
say("still here")
"""


@pytest.mark.slow
def test_early_exit_of_a_rank(mpi):
    lines = output_of(start(mpi, 3, LEAVES_EARLY.format(add_up=ADD_UP)))
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


@pytest.mark.slow
def test_data_loader_workers_at_exit(mpi):
    assert output_of(start(mpi, 2, WORKERS.format(add_up=ADD_UP))).count("with workers") == 2


LATE = """
import os, time
time.sleep(6 * (os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0"))
"""


@pytest.mark.slow
def test_rank_0_may_be_late(mpi):
    assert output_of(start(mpi, 2, LATE + ADD_UP)) == expected(mpi, 2)


@pytest.mark.slow
def test_all_ranks_report_why_rank_0_cannot_serve(mpi):
    """They report it at once, not at the timeout; MPI may kill them even earlier."""
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        job = start(mpi, 2, ADD_UP, MASTER_PORT=port)
        try:
            out, _ = job.communicate(timeout=BOUND_S)
        finally:
            job.kill()
    assert job.returncode != 0 and f"MASTER_PORT={port} is in use on " in out, out


FIXES_PORT = """
import os, torch_ccl, torch.distributed as dist
os.environ.update({variables!r})
dist.init_process_group("ccl")
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):
    store = store.underlying_store
say(f"rank {{dist.get_rank()}} is at a store of port {{store.port}}")
dist.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "address",
    [{"MASTER_ADDR": "127.0.0.1"}, {}],
    ids=["address and port", "port alone"],
)
def test_a_port_that_the_script_fixes(mpi, address):
    """The script's port is used, although the launcher could provide another."""
    port = str(free_port())
    script = FIXES_PORT.format(variables={**address, "MASTER_PORT": port})
    assert output_of(start(mpi, 2, script)) == [
        f"rank {rank} is at a store of port {port}" for rank in range(2)
    ]


@pytest.mark.slow
def test_torchrun_under_mpi(mpi, tmp_path):
    script = tmp_path / "add_up.py"
    script.write_text(SAY + ADD_UP + DESTROY)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)]
    lines = output_of(start_words(mpi, 1, [sys.executable, *torchrun]))
    assert lines == [f"{rank} of 2 by environment: 2" for rank in range(2)]


@pytest.mark.slow
def test_unreachable_host(mpi, tmp_path):
    """The launcher names the host. MPICH then waits for MPIEXEC_TIMEOUT."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nno-such-host.invalid\n")
    options = ["--hostfile"] if mpi.name == "Open MPI" else ["-ppn", "1", "-f"]
    words = [*options, str(hosts), sys.executable, "-c", SAY + ADD_UP]
    job = start_words(mpi, 2, words, MPIEXEC_TIMEOUT="10")
    try:
        out, _ = job.communicate(timeout=BOUND_S)
    finally:
        job.kill()
    assert job.returncode != 0 and "no-such-host" in out and "of 2 by" not in out, out


# ---- MPI in the same process

MPI_ADDS_UP = """
from mpi4py import MPI
say(f"MPI: {MPI.COMM_WORLD.Get_rank()} of {MPI.COMM_WORLD.allreduce(1)}")
"""
ORDERS = {
    "before": MPI_ADDS_UP + ADD_UP,
    "after": ADD_UP + MPI_ADDS_UP,
    "between": ADD_UP + DESTROY + MPI_ADDS_UP + ADD_UP + DESTROY,
}


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_mpi4py(mpi, order, tmp_path):
    """MPI is initialised before the group, after it, or between two groups."""
    # Debian's MPICH library has another name than libmpi.so.12.
    (tmp_path / "libmpi.so.12").symlink_to(mpi.library)
    libraries = f"{tmp_path}:{mpi.library.parent}"
    mpi_lines = [f"MPI: {rank} of 2" for rank in range(2)]
    groups = ORDERS[order].count(ADD_UP)
    job = start(
        mpi,
        2,
        ORDERS[order],
        MPI4PY_MPIABI=mpi.interface,
        LD_LIBRARY_PATH=libraries,
        I_MPI_FABRICS="shm",
    )
    assert output_of(job) == sorted(expected(mpi, 2, groups) + mpi_lines)


SAYS_MPI = """
import torch, torch.distributed as dist

dist.init_process_group("mpi"{arguments})
dist.destroy_process_group()
dist.init_process_group("mpi"{arguments})
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.tensor([1.0, -1.0]) if rank == 0 else torch.zeros(2)
dist.broadcast(x, src=0)
pair, last, again = (dist.new_group(ranks) for ranks in ([0, 2], [1, 2], [0, 2]))
ones = torch.ones(1)
if rank != 1:
    dist.all_reduce(ones, group=pair)
    dist.all_reduce(ones, group=again)
if rank != 0:
    dist.barrier(last)
dist.barrier()
say(f"{{rank}} of {{size}} by {{dist.get_backend()}}: {{x.tolist()}} {{ones.item():g}}")
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["", ", rank=0, world_size=0"])
def test_scripts_that_say_mpi(mpi, arguments):
    """Only CCL_REPLACE is set. As with MPI, rank and world_size are ignored."""
    script = SAYS_MPI.format(arguments=arguments)
    process = start(mpi, 3, script, CCL_REPLACE="mpi", PYTHONWARNINGS="ignore")
    sums = {0: 4, 1: 1, 2: 4}
    assert output_of(process) == [
        f"{rank} of 3 by mpi: [1.0, -1.0] {sums[rank]}" for rank in range(3)
    ]
