"""Fast calls: results, errors, and what stays as it is in torch."""

import inspect
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.fast_calls import NAMES, cell_of, count_originals, originals_called, own
from support.parameters import slow
from support.ranks import run_ranks, started_ranks
from torch.distributed import _functional_collectives as functional

# The names that a program imported before fast calls were switched on.
from torch.distributed import all_reduce as imported_all_reduce
from torch.distributed import distributed_c10d as c10d

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


# ---- results


def check_plain_calls(counts, group, rank: int, size: int, dtype: torch.dtype) -> None:
    """`rank` and `size` are those of the group."""
    everyone = [own(r, 2 * size, 3, dtype=dtype) for r in range(size)]
    mine = everyone[rank]
    total = torch.stack(everyone).sum(0).to(dtype)
    many = {"group": group}
    with originals_called(counts, 0):
        x = mine.clone()
        assert dist.all_reduce(x, **many) is None
        assert x.equal(total)
        x = mine.clone()
        dist.all_reduce(x, dist.ReduceOp.MAX, group)
        assert x.equal(everyone[-1])
        x = mine.clone()
        dist.all_reduce(op=dist.ReduceOp.MIN, tensor=x, async_op=False, **many)
        assert x.equal(everyone[0])
        x = mine.clone()
        dist.broadcast(x, group_src=size - 1, **many)
        assert x.equal(everyone[-1])
        x = mine.clone()
        root = c10d.get_global_rank(group, 0) if group else 0
        dist.broadcast(x, root, group)
        assert x.equal(everyone[0])
        y = torch.empty(size * 2 * size, 3, dtype=dtype)
        dist.all_gather_single(y, mine, **many)
        assert y.equal(torch.cat(everyone))
        y.zero_()
        y[rank * 2 * size : (rank + 1) * 2 * size] = mine
        dist.all_gather_single(y, y[rank * 2 * size : (rank + 1) * 2 * size], **many)  # in place
        assert y.equal(torch.cat(everyone))
        y = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter_single(y, mine, **many)
        assert y.equal(total.chunk(size)[rank])
        dist.reduce_scatter_single(y, mine, dist.ReduceOp.MAX, group)
        assert y.equal(everyone[-1].chunk(size)[rank])
        y = torch.empty_like(mine)
        dist.all_to_all_single(y, mine, **many)
        assert y.equal(torch.cat([x.chunk(size)[rank] for x in everyone]))
        dist.barrier(group)
        dist.barrier(group=group, async_op=False)
        exchange(rank, mine, many)


def exchange(rank: int, mine: torch.Tensor, group: dict) -> None:
    """Rank 0 of the group sends to rank 1 and back; by global rank and by rank in the group."""
    own_group = group["group"]
    other = c10d.get_global_rank(own_group, 1 - rank) if own_group and rank < 2 else 1 - rank
    x = torch.empty_like(mine)
    if rank == 0:
        dist.send(mine, other, tag=3, **group)
        assert dist.recv(x, other, own_group) == other
        assert x.equal(mine * 2)
        dist.send(mine, group_dst=1, **group)
    elif rank == 1:
        assert dist.recv(x, src=other, tag=3, **group) == other
        dist.send(x * 2, other, own_group)
        assert dist.recv(x, other, **group) == other


def check_results(rank: int, size: int) -> None:
    counts = count_originals()
    world = dist.group.WORLD
    pair = dist.new_group([1, 2])
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64):
        check_plain_calls(counts, None, rank, size, dtype)
        check_plain_calls(counts, world, rank, size, dtype)
        if rank > 0:
            check_plain_calls(counts, pair, rank - 1, 2, dtype)
        dist.barrier()
    with originals_called(counts, 0):
        x = torch.tensor(1.0)
        dist.all_reduce(x)
        assert x == size
        x = torch.nn.Parameter(torch.ones(3))
        version = x._version
        with torch.no_grad():
            dist.all_reduce(x)
        assert x.eq(size).all()
        assert x._version == version  # as torch's own
        with torch.inference_mode():
            x = torch.ones(3)
            dist.all_reduce(x)
        dist.all_reduce(x)
        assert x.eq(size * size).all()
        x = torch.ones(1 << 20)
        dist.all_reduce(x)
        assert x.eq(size).all()
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        check_deprecated(counts, name, size)


def check_deprecated(counts, name: str, size: int) -> None:
    """Its first call is torch's own, which warns."""
    function = getattr(dist, name)
    is_deprecated = hasattr(function, "__deprecated__")
    x, y = torch.ones(2), torch.ones(2 * size)
    arguments = (y, x) if "gather" in name else (x, y)
    with originals_called(counts, int(is_deprecated)), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            function(*arguments)
    assert len(seen) == int(is_deprecated)


def test_results():
    run_ranks(3, check_results)


def check_versions(rank: int, size: int) -> None:
    for enable in (False, True):
        torch_ccl.fast_calls(enable)
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        assert x._version == 0, enable


def test_version_counter_is_as_without():
    run_ranks(2, check_versions)


# ---- errors


def error_text(call) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    return re.sub(r"\d+", "N", str(caught.value))


def check_same_errors(rank: int, size: int) -> None:
    texts = []
    for enable in (False, True):
        torch_ccl.fast_calls(enable)
        group = dist.new_group(group_desc="errors")
        before = torch_ccl.operation_count()
        texts.append(
            [
                error_text(lambda group=group: dist.all_reduce(torch.ones(3 + rank), group=group)),
                error_text(lambda group=group: dist.all_reduce(torch.ones(3), group=group)),
                error_text(lambda group=group: dist.barrier(group)),
                torch_ccl.operation_count() - before,
            ]
        )
    assert texts[0] == texts[1]


def test_errors_are_the_same():
    run_ranks(2, check_same_errors)


def check_dead_peer(rank: int, size: int) -> str:
    counts = count_originals()
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    with originals_called(counts, 0), pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(4))
    return str(caught.value)


def test_dead_peer():
    with started_ranks(3, check_dead_peer) as ranks:
        pass
    for survivor in (ranks[0], ranks[2]):
        assert not survivor.failure, survivor.failure
        assert "rank 1 (host" in survivor.value


def check_interrupt(rank: int, size: int, name: str) -> None:
    counts = count_originals()
    x = torch.ones(3)
    if rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        call = {
            "all_reduce": lambda: dist.all_reduce(x),
            "recv": lambda: dist.recv(x, 1),
        }[name]
        start = time.monotonic()
        with originals_called(counts, 0), pytest.raises(KeyboardInterrupt):
            call()
        assert time.monotonic() - start < 20
        c10d._get_default_store().set("done", "")
    else:
        c10d._get_default_store().wait(["done"])
    if name == "recv":  # was cancelled: the group is usable, and the message goes to the next one
        if rank == 1:
            dist.send(x * 7, 0)
        else:
            dist.recv(x, 1)
            assert x.eq(7).all()


@pytest.mark.parametrize("name", ["all_reduce", "recv"])
def test_interrupt(name):
    run_ranks(2, check_interrupt, name)


def check_other_threads_run(rank: int, size: int) -> None:
    count_originals()
    if rank == 0:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(3),))
        thread.start()
        c10d._get_default_store().set("waits", "")  # needs the GIL, while the thread waits
        thread.join()
    else:
        c10d._get_default_store().wait(["waits"])
        dist.all_reduce(torch.ones(3))


def test_gil_is_released():
    run_ranks(2, check_other_threads_run)


def check_lifetime(rank: int, size: int) -> None:
    """Another thread destroys the group while this one waits in it."""
    torch_ccl.fast_calls()
    if rank == 0:
        group = [dist.new_group()]
        errors = []

        def wait():
            try:
                dist.all_reduce(torch.ones(3), group=group[0])
            except dist.DistBackendError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.3)
        group[0]._get_backend(torch.device("cpu")).abort()
        group.clear()
        thread.join()
        assert "abort" in errors[0]
    else:
        dist.new_group()
    dist.barrier()


def test_group_is_destroyed_meanwhile():
    run_ranks(2, check_lifetime)


# ---- what stays as it is


def facts(function) -> tuple:
    return (
        function,
        pickle.dumps(function),
        inspect.signature(function),
        inspect.getsource(function),
        function.__doc__,
        function.__module__,
        function.__wrapped__,
        function.__code__,
    )


def check_functions(rank: int, size: int) -> None:
    assert not torch_ccl.fast_calls_enabled()
    modules = (dist, c10d)
    before = [facts(getattr(module, name)) for module in modules for name in NAMES]
    functional_before = dict(vars(functional))
    cells = [cell_of(getattr(c10d, name)).cell_contents for name in NAMES]

    torch_ccl.fast_calls()
    torch_ccl.fast_calls()  # once more changes nothing
    assert torch_ccl.fast_calls_enabled()
    assert [facts(getattr(module, name)) for module in modules for name in NAMES] == before
    assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce
    shortcut = functional.all_reduce
    assert shortcut is not functional_before["all_reduce"]
    assert inspect.signature(shortcut) == inspect.signature(functional_before["all_reduce"])
    assert pickle.loads(pickle.dumps(shortcut)) is shortcut
    x = torch.ones(3)
    dist.all_reduce(x)

    torch_ccl.fast_calls(False)
    torch_ccl.fast_calls(False)
    assert not torch_ccl.fast_calls_enabled()
    assert [cell_of(getattr(c10d, name)).cell_contents for name in NAMES] == cells
    assert [facts(getattr(module, name)) for module in modules for name in NAMES] == before
    assert dict(vars(functional)) == functional_before
    dist.all_reduce(x)
    assert x.eq(size * size).all()


def test_functions_stay_the_same_objects():
    run_ranks(2, check_functions)


def check_ways_in(rank: int, size: int) -> None:
    counts = count_originals()
    from torch.distributed import all_reduce as imported_afterwards

    with originals_called(counts, 0):
        for function in (
            imported_all_reduce,
            imported_afterwards,
            dist.all_reduce,
            c10d.all_reduce,
            getattr(torch, "distributed").all_reduce,  # noqa: B009
        ):
            x = torch.ones(3)
            function(x)
            assert x.eq(size).all()
    torch_ccl.fast_calls(False)
    with originals_called(counts, 1):
        imported_all_reduce(x)


def test_every_way_in():
    run_ranks(2, check_ways_in)


def check_compile(rank: int, size: int) -> None:
    """Each call is traced to a functional collective, in one graph."""
    counts = count_originals()

    def all_calls(x):
        y = x * 2
        dist.all_reduce(y)
        gathered = torch.empty(size * 4)
        dist.all_gather_single(gathered, y)
        part = torch.empty(4)
        dist.reduce_scatter_single(part, gathered)
        exchanged = torch.empty(4)
        dist.all_to_all_single(exchanged, part)
        return functional.all_reduce(exchanged, "max", dist.group.WORLD) + 1

    expected = torch.full((4,), 2.0 * size * size + 1)
    for _ in range(2):
        for enable in (True, False, True):
            torch_ccl.fast_calls(enable)
            compiled = torch.compile(all_calls, backend="aot_eager", fullgraph=True)
            with originals_called(counts, 0):
                assert compiled(torch.ones(4)).equal(expected)

    def with_graph_breaks(x):
        y = x * 2
        dist.broadcast(y, 0)
        dist.barrier()
        return y + 1

    torch_ccl.fast_calls()
    compiled = torch.compile(with_graph_breaks, backend="aot_eager")
    for _ in range(2):
        assert compiled(torch.full((4,), rank + 1.0)).eq(3).all()


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="torch.compile is not available")
def test_compile():
    run_ranks(2, check_compile, bound_s=100)


def test_switched_on_by_the_environment():
    script = """
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
function = dist.all_reduce
dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
import torch_ccl
print(torch_ccl.fast_calls_enabled(), function.__closure__[0].cell_contents is function.__wrapped__)
"""
    for value, printed in (("1", "True False"), ("0", "False True"), ("", "False True")):
        output = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "CCL_FAST_CALLS": value},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        assert output.stdout.strip() == printed, value


# ---- the same tests of others, with fast calls on


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "tests",
    [
        slow("tests/stack"),
        slow("tests/torch_suite"),
        slow("tests/compat"),
        slow("tests/binding/test_profiler.py"),
        slow("tests/binding/test_collectives.py"),
        slow("tests/binding/test_interrupts.py"),
    ],
)
def test_other_tests_pass(tests):
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests],
        cwd=ROOT,
        env={**os.environ, "CCL_FAST_CALLS": "1"},
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
