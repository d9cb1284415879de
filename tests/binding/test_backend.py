"""The backend: registration, groups, failures, fork, exit and Ctrl-C."""

import os
import re
import signal
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.parameters import slow
from support.ranks import (
    run_forked_scripts,
    run_ranks,
    run_script,
    start_script,
    started_ranks,
)
from torch import nn

# ---- registration, each test in a new interpreter

USE_ALONE = """
import torch.distributed as dist
dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
print(dist.get_backend(), type(backend).__name__, x.sum().item())
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import torch_ccl, torch",
        slow("import torch, torch_ccl"),
        "import oneccl_bindings_for_pytorch, torch",
        "import torch",
    ],
)
def test_registration(imports):
    assert run_script(imports + USE_ALONE).split() == ["ccl", "ProcessGroupCCL", "3.0"]


def test_importing_torch_alone_changes_nothing():
    script = """
import os, sys
before = dict(os.environ)
import torch
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
assert not [name for name in sys.modules if "ccl" in name.split(".")[0]], sys.modules.keys()
maps = open("/proc/self/maps").read()
assert "tccl" not in maps and "torch_ccl" not in maps
from torch.distributed import Backend
assert "ccl" in Backend.backend_list and Backend.default_device_backend_map["cpu"] == "gloo"
"""
    run_script(script)


def test_default_backend_of_one_backend_per_device():
    """torch up to 2.13 sets none for these once a plugin is registered."""
    script = """
import warnings
import torch
import torch.distributed as dist
warnings.simplefilter("error")
for backend in ("cpu:gloo", "cpu:ccl"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    print(dist.group.WORLD.name())
    dist.destroy_process_group()
"""
    assert run_script(script).split() == ["gloo", "custom"]


def test_modules():
    script = """
import os
import oneccl_bindings_for_pytorch as alias
import torch_ccl
for name in torch_ccl.__all__:
    assert getattr(alias, name) is getattr(torch_ccl, name), name
assert os.path.exists(os.path.join(torch_ccl.cwd, "env", "setvars.sh"))
assert torch_ccl.__version__[0].isdigit()
options = torch_ccl.ProcessGroupCCL.Options()
assert options.backend == "ccl"
"""
    run_script(script)


def test_old_torch_is_refused():
    """By the error of the first group; `import torch` itself succeeds."""
    script = """
import torch
torch.__version__ = "2.7.1"
try:
    torch.distributed.init_process_group(
        "ccl", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
except ImportError as error:
    print(error)
"""
    expected = "torch-ccl needs torch 2.8 or a later 2.x, but torch 2.7.1 is installed"
    assert run_script(script).strip() == expected


# ---- groups


def check_groups(rank: int, size: int) -> None:
    members = [[0, 1], [1, 2], [0, 2], [2, 1, 0], [1]]
    groups = [dist.new_group(ranks) for ranks in members]
    for _ in range(3):
        for ranks, group in zip(members, groups, strict=True):
            if rank not in ranks:
                continue
            x = torch.tensor([rank + 1.0])
            dist.all_reduce(x, group=group)
            assert x.item() == sum(r + 1 for r in ranks), (ranks, x)
            root = max(ranks)
            y = torch.tensor([rank])
            dist.broadcast(y, src=root, group=group)
            assert y.item() == root
    dist.destroy_process_group(groups[0])
    again = dist.new_group([0, 1])
    if rank in (0, 1):
        x = torch.ones(1)
        dist.all_reduce(x, group=again)
        assert x.item() == 2
    dist.barrier()


def test_groups():
    run_ranks(3, check_groups)


def check_options(rank: int, size: int) -> None:
    import torch_ccl

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert isinstance(backend, torch_ccl.ProcessGroupCCL)
    assert backend.name() == "ccl" and (backend.rank(), backend.size()) == (rank, size)
    assert isinstance(backend.options, torch_ccl.ProcessGroupCCL.Options)
    assert backend.options._timeout == timedelta(seconds=60)
    dist.group.WORLD.set_timeout(timedelta(seconds=7))
    assert backend.options._timeout == timedelta(seconds=7)
    options = torch_ccl.ProcessGroupCCL.Options(timedelta(seconds=9))
    group = dist.new_group([0, 1], pg_options=options, timeout=timedelta(seconds=8))
    made = group._get_backend(torch.device("cpu")).options
    assert made._timeout == timedelta(seconds=8) and made.global_ranks_in_group == [0, 1]
    assert options._timeout == timedelta(seconds=9)  # the caller's object is not touched
    # more nanoseconds than 64 bits hold
    forever = dist.new_group([0, 1], timeout=timedelta(days=1000 * 365))
    dist.barrier(group=forever)


def test_options():
    run_ranks(2, check_options)


def check_ddp(rank: int, size: int, dtype: torch.dtype) -> list[bytes]:
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 4))
    model = nn.parallel.DistributedDataParallel(net.to(dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        loss = model(torch.randn(8, 32, dtype=dtype)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach().view(torch.uint8).numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, slow(torch.bfloat16)])
def test_ddp(dtype):
    weights = run_ranks(2, check_ddp, dtype)
    assert weights[0] == weights[1]


# ---- failure


def check_late_rank(rank: int, size: int) -> None:
    if rank == 1:
        time.sleep(3)
        return
    group = dist.group.WORLD
    group.set_timeout(timedelta(seconds=1))
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(4))
    assert 0.9 < time.monotonic() - start < 2.5
    assert "allreduce #1 of group world" in str(caught.value), caught.value
    assert "rank 1 (host" in str(caught.value), caught.value
    with pytest.raises(dist.DistBackendError):  # the group stays failed
        dist.barrier()


@pytest.mark.serial  # measures time
def test_late_rank():
    run_ranks(2, check_late_rank)


def check_mismatch(rank: int, size: int) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(4 + rank))
        dist.barrier()
    return str(caught.value)


def test_mismatch():
    for message in run_ranks(2, check_mismatch):
        assert "allreduce(count 4," in message and "allreduce(count 5," in message, message


def check_dead_peer(rank: int, size: int, asynchronous: bool) -> tuple[float, str]:
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        work = dist.all_reduce(torch.ones(4), async_op=asynchronous)
        work.wait()
    return time.monotonic() - start, str(caught.value)


@pytest.mark.serial  # measures time
@pytest.mark.parametrize("asynchronous", [False, True])
def test_dead_peer(asynchronous):
    with started_ranks(3, check_dead_peer, asynchronous) as ranks:
        pass
    assert ranks[1].process.exitcode == -signal.SIGKILL
    for survivor in (ranks[0], ranks[2]):
        assert not survivor.failure, survivor.failure
        seconds, message = survivor.value
        assert seconds < 3
        assert "allreduce #" in message and "rank 1 (host" in message, message
        assert re.search(rf"\bpid {ranks[1].pid}\b", message), message


def check_abort(rank: int, size: int) -> None:
    if rank == 0:
        threading.Timer(0.5, dist.group.WORLD.abort).start()
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.all_reduce(torch.ones(4))
    else:
        time.sleep(1)
        with pytest.raises(dist.DistBackendError, match="abort"):
            dist.all_reduce(torch.ones(4))


def test_abort():
    run_ranks(2, check_abort)


# ---- fork, exit and Ctrl-C

TWO_RANKS = """
import faulthandler, os, sys, time
faulthandler.dump_traceback_later(50, exit=True)
import torch, torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group("ccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
"""


def run_two(script: str) -> None:
    """Runs the script on two ranks; both must exit with 0 and write nothing to stderr."""
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        ranks = run_forked_scripts(TWO_RANKS + script, [("0", store), ("1", store)])
    for code, out, err in ranks:
        assert code == 0 and not err, f"{code}\n{out}\n{err}"


@pytest.mark.parametrize(
    "script_end",
    [
        "dist.all_reduce(torch.ones(4))",
        # an operation that no peer joins and no caller waits for
        "work = dist.all_reduce(torch.ones(4), async_op=True) if rank == 0 else time.sleep(1)",
        *map(
            slow,
            [
                "work = dist.all_reduce(torch.ones(1 << 20), async_op=True); work.wait()",
                "future = dist.all_reduce(torch.ones(4), async_op=True).get_future(); "
                "future.then(lambda f: 1).wait()",
                "group = dist.new_group([0, 1]); dist.barrier(group); del group",
                "dist.barrier(); time.sleep(rank)",
                # the root exits before the other rank reads
                "time.sleep(rank); x = torch.full((4,), 1.0 - rank); dist.broadcast(x, 0); "
                "assert x.eq(1).all()",
                # torch 2.15 warns if a process changes its rank
                "dist.destroy_process_group()\nif rank == 0: "
                "dist.init_process_group('ccl', store=dist.HashStore(), rank=0, world_size=1)",
            ],
        ),
    ],
)
def test_exit_without_destroy(script_end):
    run_two(script_end)


def test_detail_mode():
    """torch compares sequence numbers between ranks: they must count the issued operations."""
    run_two("""
dist.destroy_process_group()
dist.set_debug_level(dist.DebugLevel.DETAIL)
dist.init_process_group("ccl", init_method="file://" + sys.argv[2] + "2", rank=rank, world_size=2)
tensors = [torch.ones(1000) for _ in range(20)]
works = [dist.all_reduce(x, async_op=True) for x in tensors]
for work in works:
    work.wait()
assert all(x.eq(2).all() for x in tensors)
dist.destroy_process_group()
""")


def test_one_store_for_consecutive_groups():
    run_two("""
store = dist.distributed_c10d._get_default_store()
for _ in range(5):
    dist.destroy_process_group()
    dist.init_process_group("ccl", store=store, rank=rank, world_size=2)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
dist.destroy_process_group()
""")


def test_forked_children():
    run_two("""
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.tensor([float(i)])

total = torch.zeros(1)
pending = dist.all_reduce(torch.ones(1000), async_op=True)
for _ in range(2):
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2):
        x = batch.sum().reshape(1)
        dist.all_reduce(x)
        total += x
assert total.item() == 2 * 2 * sum(range(64))
pending.wait()

faulthandler.cancel_dump_traceback_later()  # a forked child would wait for its thread for ever
child = os.fork()
if child == 0:
    sys.exit(0)  # the long way out, through atexit and destructors
_, status = os.waitpid(child, 0)
assert status == 0, status
child = os.fork()
if child == 0:
    try:
        dist.all_reduce(torch.ones(1))
        os._exit(1)
    except dist.DistBackendError as error:
        assert "forked" in str(error), error
    dist.destroy_process_group()
    if rank == 0:  # torch 2.15 warns if a process changes its rank
        dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))  # a group of its own is fine
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == 2
dist.destroy_process_group()
""")


def test_forked_child_with_the_work_of_its_parent():
    run_two("""
faulthandler.cancel_dump_traceback_later()  # a forked child would wait for its thread for ever
keys = dist.distributed_c10d._get_default_store()
if rank == 1:
    keys.wait(["forked"])
x = torch.ones(2)
work = dist.all_reduce(x, async_op=True)
if rank == 0:
    child = os.fork()
    if child == 0:
        assert not work.is_completed()
        try:
            work.wait()
            os._exit(1)
        except dist.DistBackendError as error:
            assert "forked" in str(error), error
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    keys.set("forked", "")
work.wait()
assert x.eq(2).all()
dist.destroy_process_group()
""")


@pytest.mark.serial  # measures time
@pytest.mark.parametrize(
    "blocked",
    [
        "dist.all_reduce(torch.ones(4))",
        slow("dist.all_reduce(torch.ones(4), async_op=True).wait()"),
        "dist.new_group([0, 1])",
    ],
)
def test_ctrl_c(blocked):
    script = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits "ignore"
dist.barrier()
if rank == 1:
    time.sleep(30)
    sys.exit(1)
print("blocked", flush=True)
{blocked}
"""
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        processes = [start_script(TWO_RANKS + script, str(r), store) for r in range(2)]
        try:
            first = processes[0]
            assert first.stdout.readline() == "blocked\n", first.stderr.read()
            time.sleep(1)
            start = time.monotonic()
            first.send_signal(signal.SIGINT)
            _, err = first.communicate(timeout=20)
            seconds = time.monotonic() - start
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    assert "KeyboardInterrupt" in err.splitlines()[-1], err
    assert first.returncode == -signal.SIGINT
    assert seconds < 2, f"{seconds:.1f} s from Ctrl-C to the end"
