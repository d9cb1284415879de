"""Fast calls of functional collectives: results, the conditions of the plain case, DTensor."""

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.fast_calls import own
from support.ranks import run_ranks
from torch.distributed import _functional_collectives as functional

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


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
        # torch's c10d ends the row when the operation completes: not after the profiler has ended.
        with torch.profiler.profile():
            result = functional.all_reduce(x, "sum", group)
            result.trigger_wait()
            return result

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
