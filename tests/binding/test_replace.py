"""CCL_REPLACE and torch_ccl.replace(): programs that request "gloo" or "mpi" get ccl."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.ccl_usage import CPU, check_sum, is_ours, served_by_ccl
from support.parameters import slow
from support.ranks import run_ranks, run_script
from torch._C import _distributed_c10d as bindings
from torch.distributed import distributed_c10d as c10d


def replace_gloo(rank: int) -> None:
    torch_ccl.replace("gloo")


def served(rank, size, function, *args):
    """Calls `function`; the group must be ours, and ccl must have started operations."""
    assert is_ours(dist.group.WORLD)
    with served_by_ccl():
        return function(rank, size, *args)


def run_as(backend: str | None, function, *args, size: int = 2) -> list:
    """Runs ranks that request `backend` by name while gloo is replaced."""
    group = {"backend": backend}
    return run_ranks(size, served, function, *args, prepare=replace_gloo, group=group)


# ---- every way to create a group


def check_world(rank, size, name):
    assert dist.get_backend() == name
    check_sum(None, size)


@pytest.mark.parametrize(
    ("backend", "name"),
    [("gloo", "gloo"), ("GLOO", "gloo"), ("cpu:gloo", "cpu:gloo"), (None, "undefined")],
)
def test_init_process_group(backend, name):
    """get_backend() returns the same name as with Gloo itself."""
    run_as(backend, check_world, name)


def check_new_groups(rank, size):
    for options in ({}, {"backend": "gloo"}, {"backend": dist.get_backend()}, {"backend": "ccl"}):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=30), group_desc="tp", **options)
        assert is_ours(group)
        check_sum(group, 2)
    alone = [dist.new_group([r], backend="gloo") for r in range(size)][rank]
    assert is_ours(alone)
    check_sum(alone, 1)
    mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    assert is_ours(mesh.get_group("a"))
    check_sum(mesh.get_group("a"), 2)


@pytest.mark.parametrize("backend", ["gloo", None, "ccl"])
def test_new_groups_and_meshes(backend):
    run_as(backend, check_new_groups)


def check_direct(rank, size):
    """A group is created through the class, with each form of its arguments."""
    from torch.distributed import ProcessGroup, ProcessGroupGloo

    store = dist.distributed_c10d._get_default_store()
    ways = [
        lambda s: ProcessGroupGloo(s, rank, size, timeout=timedelta(seconds=30)),
        lambda s: ProcessGroupGloo(s, rank, size, timedelta(seconds=30)),
        lambda s: ProcessGroupGloo(s, rank, size),
        lambda s: c10d.ProcessGroupGloo(s, rank, size, bindings.ProcessGroupGloo._Options()),
    ]
    for number, make in enumerate(ways):
        prefix = dist.PrefixStore(f"direct/{number}", store)
        backend = make(prefix)
        assert isinstance(backend, ProcessGroupGloo) and isinstance(backend, dist.ProcessGroupGloo)
        group = ProcessGroup(prefix, rank, size)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        backend._set_sequence_number_for_group()
        group._register_backend(CPU, ProcessGroup.BackendType.GLOO, backend)
        check_sum(group, size)
        dist.barrier(group=group)
        assert (group.rank(), group.size()) == (rank, size)
        group.shutdown()


def test_class_itself():
    run_as("gloo", check_direct)


# ---- what torch does only for gloo, by name or class


def check_services(rank, size):
    with served_by_ccl():
        dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)
    for module in (dist, c10d, bindings):
        assert isinstance(dist.group.WORLD._get_backend(CPU), module.ProcessGroupGloo)
    ccl = dist.new_group(backend="ccl")
    assert not isinstance(ccl._get_backend(CPU), dist.ProcessGroupGloo)
    c10d._set_pg_timeout(timedelta(seconds=7))
    assert dist.group.WORLD._get_backend(CPU).options._timeout == timedelta(seconds=7)
    dist.barrier()
    assert dist.group.WORLD._get_sequence_number_for_group() == 1  # messages have none


def test_services_of_gloo():
    run_as("gloo", check_services)


def check_missing_rank(rank, size):
    dist.barrier()
    if rank == 1:
        return time.sleep(3)
    with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
        dist.monitored_barrier(timeout=timedelta(seconds=0.5))


def test_monitored_barrier_names_missing_rank():
    run_as("gloo", check_missing_rank)


def check_profile(rank, size):
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(3))
    return [event.key for event in profile.key_averages()]


def test_profiler_rows_have_the_name():
    for rows in run_as("gloo", check_profile):
        assert "gloo:all_reduce" in rows


def check_ddp_log(rank, size):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    log = model._get_ddp_logging_data()
    return log["backend_name"], log["gloo_num_threads"]


def test_ddp_logger(monkeypatch):
    """DDP's logger casts the backend to torch's class, and reads a member of it."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    script = (
        "import torch.distributed as dist; from test_replace import check_ddp_log;"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1);"
        "print(*check_ddp_log(0, 1))"
    )
    paths = "tests:tests/binding"
    assert run_script(script, CCL_REPLACE="gloo", PYTHONPATH=paths).split() == ["gloo", "2"]


# ---- on and off


def test_off_unless_asked_for():
    assert torch_ccl.replaced() == ()
    assert "__wrapped__" not in vars(dist.ProcessGroupGloo)
    assert not dist.is_mpi_available()


def check_restored(rank, size):
    torch_ccl.replace("gloo", "mpi")
    assert torch_ccl.replaced() == ("gloo", "mpi") and dist.is_mpi_available()
    torch_ccl.replace("gloo")  # a second call has no effect
    from torch.distributed import ProcessGroupGloo as kept

    ours = dist.new_group(backend="gloo")
    torch_ccl.restore("gloo")
    assert torch_ccl.replaced() == ("mpi",)
    theirs = dist.new_group(backend="gloo")
    assert is_ours(ours) and type(theirs._get_backend(CPU)) is dist.ProcessGroupGloo
    check_sum(ours, size)
    store = dist.PrefixStore("kept", c10d._get_default_store())
    gloo = kept(store, rank, size)
    assert type(gloo) is dist.ProcessGroupGloo
    dist.barrier()  # Gloo fails if its peer has gone before it has connected
    torch_ccl.restore()
    assert torch_ccl.replaced() == () and not dist.is_mpi_available()
    assert not hasattr(c10d, "ProcessGroupMPI")


def test_restore():
    run_ranks(2, check_restored)


def test_class_is_a_class():
    """isinstance() works; subclassing is refused, because groups would get another class."""
    torch_ccl.replace("gloo")
    try:
        substitute = dist.ProcessGroupGloo
        assert issubclass(substitute, substitute)
        assert issubclass(substitute.__wrapped__, substitute)
        assert not issubclass(torch_ccl.ProcessGroupCCL, substitute)
        with pytest.raises(TypeError, match=r"Mine.*ProcessGroupGloo.*torch_ccl.restore"):

            class Mine(dist.ProcessGroupGloo):
                pass
    finally:
        torch_ccl.restore()


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="can replace gloo and mpi, not 'nccl'"):
        torch_ccl.replace("gloo", "nccl")
    assert torch_ccl.replaced() == ()


ALONE = """
import sys, torch, torch.distributed as dist
assert not isinstance(None, dist.ProcessGroupGloo)  # a question loads nothing
assert "torch_ccl" not in sys.modules and "torch_ccl._C" not in sys.modules
dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__, dist.get_backend())
"""


@pytest.mark.parametrize(
    ("asked", "backend", "served"),
    [
        ("gloo", "gloo", "ProcessGroupCCL gloo"),
        ("mpi", "gloo", "ProcessGroupGloo gloo"),
        slow("mpi,gloo", "gloo", "ProcessGroupCCL gloo"),
        slow("GLOO mpi", "mpi", "ProcessGroupCCL mpi"),
        slow("", "gloo", "ProcessGroupGloo gloo"),
    ],
)
def test_environment(asked, backend, served):
    """The script does not import torch_ccl: torch loads the entry point, which loads nothing
    else."""
    assert run_script(ALONE, backend, CCL_REPLACE=asked).strip() == served


def test_misspelt_environment():
    script = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
print(*[w.message for w in caught if "CCL_REPLACE" in str(w.message)])
"""
    printed = run_script(script, CCL_REPLACE="gloo,glo")
    assert "CCL_REPLACE" in printed and "'glo'" in printed and "nothing is replaced" in printed


def run_misspelt(filter: str) -> str:
    """Returns the stderr of `import torch`, which must not fail."""
    process = subprocess.run(
        [sys.executable, "-W", filter, "-c", "import torch"],
        env={**os.environ, "CCL_REPLACE": "glo"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


@pytest.mark.slow
def test_misspelt_environment_where_warnings_are_errors():
    assert "CCL_REPLACE: torch-ccl can replace gloo and mpi, not 'glo'" in run_misspelt(
        "error::UserWarning"
    )
    assert "CCL_REPLACE" not in run_misspelt("ignore::UserWarning")


def test_torch_without_gloo():
    script = """
import warnings, torch, torch.distributed as dist
from torch._C import _distributed_c10d as bindings
from torch.distributed import distributed_c10d as c10d
for module in (bindings, c10d, dist):
    del module.ProcessGroupGloo
c10d._GLOO_AVAILABLE = False
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch_ccl
print(*[w.message for w in caught if "CCL_REPLACE" in str(w.message)])
try:
    torch_ccl.replace("mpi", "gloo")
except ValueError as problem:
    print(problem)
assert torch_ccl.replaced() == () and not dist.is_mpi_available()  # all or nothing
"""
    printed = run_script(script, CCL_REPLACE="gloo", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert printed.count("this torch has no Gloo") == 2 and "nothing is replaced" in printed


# ---- mpi


def test_mpi_alone():
    """Rank and size are the launcher's, whatever the arguments are; without a launcher, 0 of 1."""
    script = """
import warnings, torch, torch.distributed as dist, torch_ccl
warnings.simplefilter("ignore")
torch_ccl.replace("mpi")
for _ in range(2):
    dist.init_process_group("mpi", rank=0, world_size=0)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "mpi")
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.destroy_process_group()
print(x.tolist(), torch_ccl.operation_count())
"""
    assert run_script(script) == "[1.0, 1.0] 2\n"
