"""Fast calls: results, the conditions of the plain case, and what stays as it is in torch."""

import collections
import contextlib
import functools
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
from support.debug_levels import run_at_level
from support.parameters import slow
from support.ranks import init_group, run_ranks, started_ranks
from torch.distributed import _functional_collectives as functional

# The names that a program imported before fast calls were switched on.
from torch.distributed import all_reduce as imported_all_reduce
from torch.distributed import distributed_c10d as c10d
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    name
    for name in (
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "recv",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "send",
    )
    if hasattr(c10d, name)
]
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


def cell_of(function):
    [cell] = [c for c in function.__closure__ if c.cell_contents is function.__wrapped__]
    return cell


def count_originals() -> collections.Counter:
    """Switches fast calls on; the counter counts the calls of torch's functions from then on."""
    counts: collections.Counter = collections.Counter()

    def counted(name, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for name in NAMES:
        function = getattr(c10d, name)
        cell = cell_of(function)
        cell.cell_contents = function.__wrapped__ = counted(name, function.__wrapped__)
    torch_ccl.fast_calls()
    return counts


@contextlib.contextmanager
def originals_called(counts: collections.Counter, times: int):
    """In the block torch's functions must be called this often."""
    before = sum(counts.values())
    yield
    assert sum(counts.values()) - before == times, counts


# ---- results


def own(rank: int, *shape: int, dtype=torch.float32) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + rank).to(dtype)


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


# ---- the conditions of the plain case
#
# Each call breaks one condition; torch's own function must be called.

CONDITIONS = {}


def breaks(condition: str, error: type | tuple[type, ...] | None = None):
    """`error` is what the call raises, also without fast calls."""

    def keep(call):
        assert condition not in CONDITIONS
        CONDITIONS[condition] = call, error
        return call

    return keep


class Subclass(torch.Tensor):
    pass


@breaks("the tensor is no subclass")
def _(rank, size):
    dist.all_reduce(torch.ones(3).as_subclass(Subclass))


@breaks("the tensor is a tensor", TypeError)
def _(rank, size):
    dist.all_reduce([1.0])


@breaks("the tensor is contiguous")
def _(rank, size):
    x = torch.ones(3, 4).t()
    dist.all_reduce(x)
    assert x.eq(size).all()


@breaks("the tensor is dense")
def _(rank, size):
    dist.all_reduce(torch.eye(3).to_sparse())


@breaks("the tensor is on the CPU")
def _(rank, size):
    with contextlib.suppress(NotImplementedError):  # in some versions of torch
        dist.all_reduce(torch.empty(3, device="meta"))


@breaks("the tensor is not complex")
def _(rank, size):
    x = torch.ones(3, dtype=torch.complex64)
    dist.all_reduce(x)
    assert x.eq(size).all()


@breaks("the tensor is not lazily negated")
def _(rank, size):
    dist.all_reduce(torch._neg_view(torch.ones(3)))


@breaks("the tensor has elements")
def _(rank, size):
    dist.all_reduce(torch.ones(0))


@breaks("the tensor's storage holds it", torch_ccl.InvalidArgument)
def _(rank, size):
    x = torch.ones(8)
    x.untyped_storage().resize_(0)
    dist.all_reduce(x)


@breaks("the tensor needs no gradient")
def _(rank, size):
    dist.all_reduce(torch.ones(3, requires_grad=True))


@breaks("the output needs no gradient")
def _(rank, size):
    dist.all_gather_single(torch.ones(3 * size, requires_grad=True), torch.ones(3))


@breaks("the call is synchronous")
def _(rank, size):
    x = torch.ones(3)
    dist.all_reduce(x, async_op=True).wait()
    assert x.eq(size).all()


@breaks("async_op is a bool")
def _(rank, size):
    dist.all_reduce(torch.ones(3), async_op=0)


@breaks("op is a constant of ReduceOp")
def _(rank, size):
    x = torch.ones(3)
    dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
    assert x.eq(2 * size).all()


@breaks("op is defined for the dtype", torch_ccl.InvalidArgument)
def _(rank, size):
    dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)


@breaks("op is a reduction", TypeError)
def _(rank, size):
    dist.all_reduce(torch.ones(3), "sum")


@breaks("the parameters are known", TypeError)
def _(rank, size):
    dist.all_reduce(torch.ones(3), oop=dist.ReduceOp.SUM)


@breaks("there are not too many arguments", TypeError)
def _(rank, size):
    dist.all_reduce(torch.ones(3), dist.ReduceOp.SUM, None, False, 1)


@breaks("no argument is given twice", TypeError)
def _(rank, size):
    dist.all_reduce(torch.ones(3), tensor=torch.ones(3))


@breaks("the tensor is given", TypeError)
def _(rank, size):
    dist.all_reduce()


@breaks("the group's backend is ours")
def _(rank, size):
    x = torch.ones(3)
    dist.all_reduce(x, group=dist.new_group(backend="gloo"))
    assert x.eq(size).all()


@breaks("this rank is in the group")
def _(rank, size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce(torch.ones(3), group=dist.GroupMember.NON_GROUP_MEMBER)


@breaks("the group is a group", (AttributeError, ValueError))
def _(rank, size):
    dist.all_reduce(torch.ones(3), group="world")


@breaks("no coalescing manager is open")
def _(rank, size):
    x = torch.ones(3)
    with dist._coalescing_manager():
        dist.all_reduce(x)
    assert x.eq(size).all()


@breaks("no coalescing block of the backend is open")
def _(rank, size):
    x = torch.full((3,), float(rank))
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(x, 1)
    assert x.eq(1).all()


@breaks("the backend has no completion hook")
def _(rank, size):
    group = dist.new_group()
    seen = []
    group._register_on_completion_hook(seen.append)
    dist.all_reduce(torch.ones(3), group=group)
    group._wait_for_pending_works()
    assert len(seen) == 1


@breaks("no profiler runs")
def _(rank, size):
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(3))
    names = {event.name for event in profile.events()}
    assert {"pg::allreduce", "ccl:all_reduce"} <= names


@breaks("no torch function mode is active")
def _(rank, size):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    seen: list = []
    x = torch.ones(3)
    with Mode():
        dist.all_reduce(x)
    assert dist.all_reduce in seen
    assert x.eq(size).all()


@breaks("no dispatch mode is active")
def _(rank, size):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen: list = []
    with Mode():
        dist.all_reduce(torch.ones(3))
    assert "c10d.allreduce_.default" in seen


@breaks("no transform of functorch is active")
def _(rank, size):
    def function(x):
        dist.all_reduce(y)
        return x.sum()

    y = torch.ones(3)
    torch.func.grad(function)(torch.ones(3))
    assert y.eq(size).all()


@breaks("the call cannot become the input of a graph")
def _(rank, size):
    x = torch.ones(3)
    with functional.allow_inflight_collective_as_graph_input_ctx():
        dist.all_reduce(x)
    functional.wait_tensor(x)


@breaks("the operation queue is idle")
def _(rank, size):
    """Rank 0's queue is busy; on the others the call is another one that is not plain."""
    large = torch.ones(1 << 20)
    small = torch.ones(3)
    if rank == 0:
        work = torch_busy(large)
        dist.all_reduce(small)
        work.wait()
    else:
        time.sleep(0.3)
        torch_busy(large).wait()
        dist.all_reduce(small, async_op=True).wait()
    assert small.eq(size).all()


def torch_busy(large):
    """An asynchronous operation that is not counted."""
    options = c10d.AllreduceOptions()
    options.asyncOp = True
    return dist.group.WORLD.allreduce([large], options)


@breaks("the arguments are valid for the backend", torch_ccl.InvalidArgument)
def _(rank, size):
    dist.all_gather_single(torch.ones(3 * size + 1), torch.ones(3))


@breaks("input and output do not overlap")
def _(rank, size):
    x = torch.zeros(size * 4)
    other = (rank + 1) % size
    x[other * 4 : other * 4 + 4] = rank
    dist.all_gather_single(x, x[other * 4 : other * 4 + 4])
    assert x.equal(torch.arange(size).repeat_interleave(4).float())


@breaks("input and output of a reduce_scatter do not overlap")
def _(rank, size):
    x = torch.ones(size * 4)
    dist.reduce_scatter_single(x[:4], x)
    assert x[:4].eq(size).all()


@breaks("input and output have one dtype", torch_ccl.InvalidArgument)
def _(rank, size):
    dist.all_gather_single(torch.ones(3 * size, dtype=torch.float64), torch.ones(3))


@breaks("an all_to_all has no splits")
def _(rank, size):
    x = torch.full((size,), float(rank))
    y = torch.empty(size)
    dist.all_to_all_single(y, x, [1] * size, [1] * size)
    assert y.equal(torch.arange(size).float())


@breaks("an all_to_all has equal blocks", torch_ccl.InvalidArgument)
def _(rank, size):
    dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1))


@breaks("there is one root", ValueError)
def _(rank, size):
    dist.broadcast(torch.ones(3), 0, group_src=0)


@breaks("there is a root", ValueError)
def _(rank, size):
    dist.broadcast(torch.ones(3))


@breaks("the root is a rank of the group", torch_ccl.InvalidArgument)
def _(rank, size):
    dist.broadcast(torch.ones(3), group_src=size)


@breaks("the root is an int")
def _(rank, size):
    dist.broadcast(torch.ones(3), True)


@breaks("a barrier has no timeout")
def _(rank, size):
    from datetime import timedelta

    with contextlib.suppress(TypeError):  # torch 2.8 to 2.11 have no timeout
        dist.barrier(timeout=timedelta(seconds=30))


@breaks("a barrier has no devices")
def _(rank, size):
    dist.barrier(device_ids=[0])


@breaks("a message is for another rank", ValueError)
def _(rank, size):
    dist.send(torch.ones(3), rank)


@breaks("a tag is not negative", torch_ccl.InvalidArgument)
def _(rank, size):
    dist.send(torch.ones(3), 1 - rank, tag=-1)


@breaks("a message has a source")
def _(rank, size):
    x = torch.ones(3)
    if rank == 0:
        isend = dist.isend(x, 1)
        dist.all_reduce(x.clone(), async_op=True).wait()
        isend.wait()
    else:
        assert dist.recv(x) == 0
        torch_busy(x.clone()).wait()


def run_condition(counts, condition: str, rank: int, size: int) -> None:
    call, error = CONDITIONS[condition]
    before = sum(counts.values())
    with pytest.raises(error) if error else contextlib.nullcontext():
        call(rank, size)
    assert sum(counts.values()) > before


def check_conditions(rank: int, size: int) -> list[str]:
    counts = count_originals()
    failed = []
    for condition in CONDITIONS:
        try:
            run_condition(counts, condition, rank, size)
        except (Exception, pytest.fail.Exception) as problem:
            failed.append(f"{condition}: {type(problem).__name__}: {problem}")
        with originals_called(counts, 0):
            x = torch.ones(3)
            dist.all_reduce(x)  # plain again
            assert x.eq(size).all(), condition
    return failed


@pytest.mark.filterwarnings("ignore")
def test_every_condition_leads_to_the_original():
    assert run_ranks(2, check_conditions, bound_s=100) == [[], []]


def check_wrapped_group(rank: int, size: int) -> None:
    counts = count_originals()
    x = torch.ones(3)
    with originals_called(counts, 1):
        dist.all_reduce(x)
    assert x.eq(size).all()


def test_detail_leads_to_the_original():
    run_at_level("DETAIL", 2, check_wrapped_group)


def check_without_group(rank: int, size: int) -> None:
    counts = count_originals()
    group = dist.new_group()
    dist.destroy_process_group()
    for call in (
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.barrier(),
        lambda: dist.broadcast(torch.ones(3), 0),
    ):
        with (
            originals_called(counts, 1),
            pytest.raises(ValueError, match="has not been initialized"),
        ):
            call()
    with pytest.raises(dist.DistBackendError, match="is closed"):
        dist.all_reduce(torch.ones(3), group=group)


def test_without_group():
    run_ranks(2, check_without_group)


def check_next_group(rank: int, size: int, store: str) -> None:
    counts = count_originals()
    for attempt in range(2):
        x = torch.ones(3)
        with originals_called(counts, 0):
            dist.all_reduce(x)
        assert x.eq(size).all()
        dist.destroy_process_group()
        init_group(rank, size, f"{store}{attempt}")


def test_next_default_group(tmp_path):
    run_ranks(2, check_next_group, str(tmp_path / "store"))


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


# ---- functional collectives


def check_functional(rank: int, size: int) -> None:
    torch_ccl.fast_calls()
    group = dist.group.WORLD
    mesh = dist.init_device_mesh("cpu", (size,))
    grid = dist.init_device_mesh("cpu", (1, size), mesh_dim_names=("dp", "tp"))
    everyone = [own(r, 2 * size, 2 * size) for r in range(size)]
    mine = everyone[rank]
    total = sum(everyone)
    strided = mine.t().contiguous().t()
    exchanged = torch.cat([x.chunk(size)[rank] for x in everyone])
    for of in (group, group.group_name, mesh, (mesh, 0), (grid, 1)):
        for result, expected in (
            (functional.all_reduce(mine, "sum", of), total),
            (functional.all_reduce(strided, "SUM", of), total),
            (functional.all_reduce(mine, "max", of), everyone[-1]),
            (functional.broadcast(mine, 1, of), everyone[1]),
            (functional.all_gather_single(mine, 0, of), torch.cat(everyone)),
            (functional.all_gather_single(mine, 1, of), torch.cat(everyone, 1)),
            (functional.reduce_scatter_single(mine, "sum", 0, of), total.chunk(size)[rank]),
            (functional.reduce_scatter_single(mine, "sum", 1, of), total.chunk(size, 1)[rank]),
            (functional.all_to_all_single(mine, None, None, of), exchanged),
            (functional.all_gather_tensor(mine, 0, of), torch.cat(everyone)),
            (functional.wait_tensor(functional.all_reduce(mine, "avg", of)), total / size),
        ):
            assert type(result) is torch.Tensor
            assert result.is_contiguous()
            assert result.equal(expected)
            assert not result.requires_grad
        assert mine.equal(everyone[rank])


def test_functional_results():
    run_ranks(2, check_functional)


def check_functional_conditions(rank: int, size: int) -> None:
    torch_ccl.fast_calls()
    group = dist.group.WORLD
    gloo = dist.new_group(backend="gloo")
    x = torch.ones(4 * size)
    asynchronous = functional.AsyncCollectiveTensor
    rows = [size] * size

    def in_profiler():
        with torch.profiler.profile():
            return functional.all_reduce(x, "sum", group)

    for name, result in {
        "needs a gradient": functional.all_reduce(x.clone().requires_grad_(), "sum", group),
        "autograd's variant": functional.all_gather_single_autograd(
            x.clone().requires_grad_(), 0, group
        ),
        "a list of ranks": functional.all_reduce(x, "sum", list(range(size))),
        "another backend": functional.all_reduce(x, "sum", gloo),
        "complex": functional.all_reduce(x.to(torch.complex64), "sum", group),
        "large": functional.all_reduce(torch.ones(1 << 17), "sum", group),
        "splits": functional.all_to_all_single(torch.ones(size * size), rows, rows, group),
        "profiler": in_profiler(),
        "empty": functional.all_reduce(torch.ones(0), "sum", group),
    }.items():
        assert isinstance(result, asynchronous), name
        result.wait()
    leaf = torch.ones(3, requires_grad=True)
    functional.all_reduce(leaf * 2, "sum", group).sum().backward()
    assert leaf.grad.eq(2 * size).all()
    with torch.no_grad():
        result = functional.all_reduce(leaf, "sum", group)
    assert type(result) is torch.Tensor
    assert not result.requires_grad
    for call in (
        lambda: functional.all_reduce(x, "mean", group),
        lambda: functional.all_reduce(x, "sum", "no such group"),
        lambda: functional.all_reduce(x, "sum", 7),
        lambda: functional.reduce_scatter_single(torch.ones(size + 1), "sum", 0, group),
    ):
        with pytest.raises((RuntimeError, ValueError, AssertionError)):
            call()


@pytest.mark.filterwarnings("ignore")
def test_functional_conditions():
    run_ranks(2, check_functional_conditions)


def check_dtensor(rank: int, size: int) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    results = []
    for enable in (False, True):
        torch_ccl.fast_calls(enable)
        mesh = dist.init_device_mesh("cpu", (size,))
        partial = DTensor.from_local(torch.full((4, 6), rank + 1.0), mesh, [Partial()])
        whole = partial.redistribute(mesh, [Replicate()])
        shards = [partial.redistribute(mesh, [Shard(dim)]) for dim in (0, 1)]
        gathered = [shard.redistribute(mesh, [Replicate()]) for shard in shards]
        moved = shards[0].redistribute(mesh, [Shard(1)])
        results.append([x.to_local() for x in (whole, *shards, *gathered, moved)])
    for without, fast in zip(*results, strict=True):
        assert torch.equal(without + 0, fast + 0)


def test_dtensor():
    run_ranks(2, check_dtensor, bound_s=100)


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
