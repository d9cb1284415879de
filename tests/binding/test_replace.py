"""Programs that say "gloo" or "mpi", or nothing, get ccl if they are asked to."""

import contextlib
import os
import pickle
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from ranks import run_ranks, run_script
from torch._C import _distributed_c10d as bindings
from torch.distributed import distributed_c10d as c10d

CPU = torch.device("cpu")


def replace_gloo(rank: int) -> None:
    torch_ccl.replace("gloo")


def run_as(backend: str | None, function, *args, size: int = 2) -> list:
    """Ranks in which `backend` was asked for by that name, and gloo is replaced."""
    return run_ranks(size, function, *args, prepare=replace_gloo, group={"backend": backend})


@contextlib.contextmanager
def served_by_ccl():
    before = torch_ccl.operation_count()
    yield
    assert torch_ccl.operation_count() > before, "ccl has carried nothing"


def is_ours(group: dist.ProcessGroup) -> bool:
    return isinstance(group._get_backend(CPU), torch_ccl.ProcessGroupCCL)


def check_sum(group: dist.ProcessGroup | None, size: int) -> None:
    tensor = torch.ones(5)
    with served_by_ccl():
        dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size] * 5


# ---- every way to a group


def check_world(rank, size, name):
    assert is_ours(dist.group.WORLD)
    assert dist.get_backend() == name
    check_sum(None, size)


@pytest.mark.parametrize(
    ("backend", "name"),
    [("gloo", "gloo"), ("GLOO", "gloo"), ("cpu:gloo", "cpu:gloo"), (None, "undefined")],
)
def test_init_process_group(backend, name):
    """get_backend() says what it says with Gloo itself."""
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
    """As vLLM makes groups: by the class itself, beside no default group of theirs."""
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


def check_beside(rank, size):
    """As SGLang makes a group beside the world."""
    store = dist.PrefixStore("beside", dist.distributed_c10d._get_default_store())
    group, _ = c10d._new_process_group_helper(
        size,
        rank,
        [],
        dist.Backend("gloo"),
        store,
        group_name="beside",
        backend_options=None,
        timeout=timedelta(seconds=30),
        device_id=None,
    )
    dist.distributed_c10d._world.pg_group_ranks[group] = {i: i for i in range(size)}
    assert is_ours(group)
    check_sum(group, size)


def test_helper_of_torch():
    run_as("gloo", check_beside)


# ---- what torch does for gloo alone, by its name or its class


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
    if rank == 1:
        return time.sleep(3)
    with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
        dist.monitored_barrier(timeout=timedelta(seconds=0.5))


def test_monitored_barrier_names_who_is_missing():
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


def test_ddp_logger_reads_what_is_there(monkeypatch):
    """It takes the backend for torch's class, and reads a number from its memory."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    script = (
        "import torch.distributed as dist; from test_replace import check_ddp_log;"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1);"
        "print(*check_ddp_log(0, 1))"
    )
    paths = ":".join(["tests", "tests/binding"])
    assert run_script(script, CCL_REPLACE="gloo", PYTHONPATH=paths).split() == ["gloo", "2"]


# ---- the calls of vLLM and SGLang (docs/serving.md)


def check_control_plane(rank, size):
    sizes = torch.tensor([rank, 7], dtype=torch.int32)
    dist.all_reduce(sizes, op=dist.ReduceOp.MAX)
    assert sizes.tolist() == [size - 1, 7]
    names = [None] * size
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {r}" for r in range(size)]
    box = [{"request": 1} if rank == 0 else None]
    dist.broadcast_object_list(box, src=0, device="cpu")
    assert box == [{"request": 1}]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (None, list(range(size)))
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work.wait(timeout=timedelta(minutes=5))
    several = [dist.broadcast(torch.ones(3), src=0, async_op=True) for _ in range(4)]
    for work in several:
        work.wait()


def check_messages(rank, size):
    """Bytes of a pickled object, whose memory may not be written; ranks that are returned."""
    payload = pickle.dumps({"tokens": [1, 2, 3]})
    length = torch.tensor([len(payload)])
    if rank == 0:
        dist.send(length, dst=1)
        dist.send(torch.frombuffer(payload, dtype=torch.uint8), dst=1)
        dist.isend(torch.ones(2), group_dst=1, tag=0x46785363).wait()
    else:
        assert dist.recv(length, src=0) == 0
        received = torch.empty(int(length), dtype=torch.uint8)
        assert dist.recv(received, src=0) == 0
        assert pickle.loads(received.numpy().tobytes()) == {"tokens": [1, 2, 3]}
        tensor = torch.zeros(2)
        dist.recv(tensor, group_src=0, tag=0x46785363)
        assert tensor.tolist() == [1, 1]
    out, into = torch.full((3,), float(rank)), torch.empty(3)
    pairs = [dist.P2POp(dist.isend, out, 1 - rank), dist.P2POp(dist.irecv, into, 1 - rank)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    assert into.tolist() == [1 - rank] * 3


def check_impatient_send(rank, size):
    """A wait that runs out says so, and leaves the message and the group as they are."""
    big = torch.ones(1 << 20)
    if rank == 0:
        work = dist.isend(big, dst=1)
        with pytest.raises(RuntimeError):
            work.wait(timedelta(milliseconds=1))
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        received = torch.empty_like(big)
        dist.recv(received, src=0)
        assert torch.equal(received, big)


def check_tensors(rank, size, dtype):
    with torch.inference_mode():
        hidden = torch.full((4, 8), 1.0, dtype=dtype)
        dist.all_reduce(hidden)
        assert (hidden == size).all()
        whole = torch.empty(size * 4, dtype=dtype)
        dist.all_gather_into_tensor(whole, torch.full((4,), float(rank), dtype=dtype))
        assert whole.tolist() == [r for r in range(size) for _ in range(4)]
        part = torch.empty(4, dtype=dtype)
        dist.reduce_scatter_tensor(part, torch.arange(size * 4, dtype=dtype))
        assert part.tolist() == [size * (rank * 4 + i) for i in range(4)]
        parts = [torch.empty(2, dtype=dtype) for _ in range(size)] if rank == 0 else None
        dist.gather(torch.full((2,), float(rank), dtype=dtype), parts, dst=0)
        assert not parts or [int(p[0]) for p in parts] == list(range(size))


@pytest.mark.parametrize("check", [check_control_plane, check_messages, check_impatient_send])
def test_calls_of_servers(check):
    run_as("gloo", check)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_of_servers(dtype):
    run_as("gloo", check_tensors, dtype)


# ---- on and off


def test_off_unless_asked_for():
    assert torch_ccl.replaced() == ()
    assert "__wrapped__" not in vars(dist.ProcessGroupGloo)
    assert not dist.is_mpi_available()


def check_restored(rank, size):
    torch_ccl.replace("gloo", "mpi")
    assert torch_ccl.replaced() == ("gloo", "mpi") and dist.is_mpi_available()
    torch_ccl.replace("gloo")  # twice is as good as once
    from torch.distributed import ProcessGroupGloo as kept

    ours = dist.new_group(backend="gloo")
    torch_ccl.restore("gloo")
    assert torch_ccl.replaced() == ("mpi",)
    theirs = dist.new_group(backend="gloo")
    assert is_ours(ours) and type(theirs._get_backend(CPU)) is dist.ProcessGroupGloo
    check_sum(ours, size)
    store = dist.PrefixStore("kept", c10d._get_default_store())
    assert type(kept(store, rank, size)) is dist.ProcessGroupGloo
    torch_ccl.restore()
    assert torch_ccl.replaced() == () and not dist.is_mpi_available()
    assert not hasattr(c10d, "ProcessGroupMPI")


def test_is_given_back():
    run_ranks(2, check_restored)


def test_class_is_a_class():
    """As far as it can be: a class made from it would have made groups of another class."""
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
    with pytest.raises(ValueError, match="gloo and mpi, not of 'nccl'"):
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
        ("mpi,gloo", "gloo", "ProcessGroupCCL gloo"),
        ("GLOO mpi", "mpi", "ProcessGroupCCL mpi"),
        ("mpi", "gloo", "ProcessGroupGloo gloo"),
        ("", "gloo", "ProcessGroupGloo gloo"),
    ],
)
def test_environment(asked, backend, served):
    """Without an import: torch loads the entry point, and that loads nothing else."""
    assert run_script(ALONE, backend, CCL_REPLACE=asked).strip() == served


def test_misspelt_environment():
    script = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
print(*[w.message for w in caught if "CCL_REPLACE" in str(w.message)])
"""
    said = run_script(script, CCL_REPLACE="gloo,glo")
    assert "CCL_REPLACE" in said and "'glo'" in said and "nothing is replaced" in said


def run_misspelt(filter: str) -> str:
    """What `import torch` says on stderr; it must not fail."""
    process = subprocess.run(
        [sys.executable, "-W", filter, "-c", "import torch"],
        env={**os.environ, "CCL_REPLACE": "glo"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


def test_misspelt_environment_where_warnings_are_errors():
    assert "CCL_REPLACE: torch-ccl can take" in run_misspelt("error::UserWarning")
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
    said = run_script(script, CCL_REPLACE="gloo", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert said.count("this torch has no Gloo") == 2 and "nothing is replaced" in said


# ---- mpi


def test_mpi_alone():
    """Rank and size are the launcher's, whatever the call says, as with MPI; there is none here."""
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
