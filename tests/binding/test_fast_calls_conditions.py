"""Fast calls: the conditions of the plain case.

Each call breaks one condition; torch's own function must be called.
"""

import contextlib
import time
import warnings

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.debug_levels import run_at_level
from support.fast_calls import count_originals, originals_called
from support.ranks import init_group, run_ranks
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")

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
