"""The five basic collectives, compared with values computed locally."""

import itertools
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks
from support.torch_reference import DTYPES

SHAPES = [(), (0,), (1,), (7,), (3, 5), (70_001,)]


def data_of(rank: int, shape, dtype: torch.dtype) -> torch.Tensor:
    """Returns small integers, different on every rank, exact in every dtype (bool: a pattern)."""
    numel = torch.Size(shape).numel()
    values = (torch.arange(numel) * 7 + rank * 3 + 1) % 4
    if dtype.is_complex:
        return torch.complex(values.double(), (values.double() - 1)).to(dtype).reshape(shape)
    return values.to(dtype).reshape(shape)


def reduced(inputs: list[torch.Tensor], op) -> torch.Tensor:
    wide = torch.complex128 if inputs[0].is_complex() else torch.float64
    stacked = torch.stack([x.to(wide) for x in inputs])
    result = {
        dist.ReduceOp.SUM: lambda: stacked.sum(0),
        dist.ReduceOp.AVG: lambda: stacked.mean(0),
        dist.ReduceOp.PRODUCT: lambda: stacked.prod(0),
        dist.ReduceOp.MIN: lambda: stacked.amin(0),
        dist.ReduceOp.MAX: lambda: stacked.amax(0),
    }[op]()
    return result.to(inputs[0].dtype)


def assert_same(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    # float8 and the wider unsigned types have no comparison in torch: compare as float64
    wide = torch.complex128 if expected.is_complex() else torch.float64
    same = found.shape == expected.shape and torch.equal(found.to(wide), expected.to(wide))
    assert same, f"{what}: {found.flatten()[:8]} instead of {expected.flatten()[:8]}"


def finish(work, asynchronous: bool) -> None:
    if asynchronous:
        work.wait()
        assert work.is_completed() and work.is_success()
    else:
        assert work is None


# ---- every collective, dtype and shape


def check_dtypes(rank: int, size: int) -> None:
    for dtype, shape, asynchronous in itertools.product(DTYPES, SHAPES, (False, True)):
        what = f"{dtype} {shape} async={asynchronous}"
        inputs = [data_of(r, shape, dtype) for r in range(size)]

        x = inputs[rank].clone()
        finish(dist.all_reduce(x, async_op=asynchronous), asynchronous)
        assert_same(x, reduced(inputs, dist.ReduceOp.SUM), f"all_reduce {what}")

        root = size - 1
        x = inputs[rank].clone()
        finish(dist.broadcast(x, src=root, async_op=asynchronous), asynchronous)
        assert_same(x, inputs[root], f"broadcast {what}")

        outputs = [torch.empty_like(x) for _ in range(size)]
        finish(dist.all_gather(outputs, inputs[rank], async_op=asynchronous), asynchronous)
        for r in range(size):
            assert_same(outputs[r], inputs[r], f"all_gather {what}")

        output = torch.empty(size * x.numel(), dtype=dtype)
        finish(gather_into(output, inputs[rank].flatten(), asynchronous), asynchronous)
        expected = torch.cat([x.flatten() for x in inputs])
        assert_same(output, expected, f"all_gather_into_tensor {what}")

        finish(dist.barrier(async_op=asynchronous), asynchronous)


def gather_into(output, x, asynchronous):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch prefers the name all_gather_single
        return dist.all_gather_into_tensor(output, x, async_op=asynchronous)


# More ranks than the two cores of the smallest machine we test on.
@pytest.mark.parametrize("size", [1, 2, 5])
def test_dtypes(size):
    run_ranks(size, check_dtypes)


def check_reductions(rank: int, size: int) -> None:
    op = dist.ReduceOp
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        for kind in (op.SUM, op.PRODUCT, op.MIN, op.MAX, op.AVG):
            inputs = [data_of(r, (1000,), dtype) for r in range(size)]
            x = inputs[rank].clone()
            if kind == op.AVG and not dtype.is_floating_point:
                with pytest.raises(ValueError, match="avg"):
                    dist.all_reduce(x, kind)
                continue
            dist.all_reduce(x, kind)
            assert_same(x, reduced(inputs, kind), f"{kind} {dtype}")
    for kind, fold in ((op.BAND, "__and__"), (op.BOR, "__or__"), (op.BXOR, "__xor__")):
        inputs = [torch.arange(64) + 17 * r for r in range(size)]
        expected = inputs[0]
        for x in inputs[1:]:
            expected = getattr(expected, fold)(x)
        x = inputs[rank].clone()
        dist.all_reduce(x, kind)
        assert_same(x, expected, f"{kind}")
    x = torch.full((5,), float(rank + 1))
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    assert_same(x, torch.full((5,), size * (size + 1) / 4), "premul_sum")


def test_reductions():
    run_ranks(3, check_reductions)


# ---- tensors that are not contiguous


def awkward_views(rank: int) -> dict[str, torch.Tensor]:
    base = torch.arange(48.0).reshape(6, 8) + 100 * rank
    return {
        "transposed": base.clone().t(),
        "every second column": base.clone()[:, ::2],
        "a middle piece": base.clone()[1:5, 2:7],
        "channels last": base.clone().reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "requires grad": base.clone().t().requires_grad_(),
    }


def check_views(rank: int, size: int, asynchronous: bool) -> None:
    for name in awkward_views(0):
        inputs = [awkward_views(r)[name] for r in range(size)]

        x = awkward_views(rank)[name]
        finish(dist.broadcast(x, src=0, async_op=asynchronous), asynchronous)
        assert_same(x.detach(), inputs[0].detach(), f"broadcast {name}")

        x = awkward_views(rank)[name]
        finish(dist.all_reduce(x, async_op=asynchronous), asynchronous)
        assert_same(x.detach(), sum(i.detach() for i in inputs), f"all_reduce {name}")

        x = awkward_views(rank)[name]
        outputs = [torch.zeros_like(awkward_views(r)[name].detach()) for r in range(size)]
        finish(dist.all_gather(outputs, x, async_op=asynchronous), asynchronous)
        for r in range(size):
            assert_same(outputs[r], inputs[r].detach(), f"all_gather {name}")

    everything = torch.full((6, 8), float(rank))
    finish(dist.all_reduce(everything[1:3, ::3], async_op=asynchronous), asynchronous)
    expected = torch.full((6, 8), float(rank))
    expected[1:3, ::3] = sum(range(size))
    assert_same(everything, expected, "what lies between the elements of a view")

    # Calls the backend: dist refuses conjugate views and loses results of negative ones.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    x = torch.full((3,), complex(1, rank)).conj()
    backend.allreduce([x]).wait()
    assert_same(x, torch.full((3,), complex(size, -sum(range(size)))), "conjugate view")
    x = torch.full((3,), complex(1, rank)).conj().imag
    backend.allreduce([x]).wait()
    assert_same(x, torch.full((3,), -float(sum(range(size)))), "negative view")

    with torch.inference_mode():
        x = torch.full((4, 4), rank + 1.0)
    finish(dist.all_reduce(x.t(), async_op=asynchronous), asynchronous)
    assert_same(x, torch.full((4, 4), size * (size + 1) / 2), "inference tensor")

    output = torch.zeros(size, 3, 2).transpose(1, 2)
    finish(gather_into(output, torch.full((2, 3), rank + 1.0), asynchronous), asynchronous)
    for r in range(size):
        assert_same(output[r], torch.full((2, 3), r + 1.0), "gather into a transposed tensor")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_views(asynchronous):
    run_ranks(3, check_views, asynchronous)


def check_uneven_gather(rank: int, size: int) -> None:
    for asynchronous in (False, True):
        x = torch.full((rank * 3,), rank, dtype=torch.int16)
        outputs = [torch.empty(r * 3, dtype=torch.int16) for r in range(size)]
        finish(dist.all_gather(outputs, x, async_op=asynchronous), asynchronous)
        for r in range(size):
            assert_same(outputs[r], torch.full((r * 3,), r, dtype=torch.int16), "uneven")


def test_uneven_gather():
    run_ranks(4, check_uneven_gather)


def check_objects(rank: int, size: int) -> None:
    everyones = [None] * size
    dist.all_gather_object(everyones, {"rank": rank, "text": "x" * rank})
    assert everyones == [{"rank": r, "text": "x" * r} for r in range(size)]
    objects = [rank, "of", size] if rank == 1 else [None] * 3
    dist.broadcast_object_list(objects, src=1)
    assert objects == [1, "of", size]


def test_objects():
    run_ranks(3, check_objects)


def check_barrier(rank: int, size: int) -> None:
    dist.barrier()
    start = time.monotonic()
    if rank == 0:
        time.sleep(0.5)
    dist.barrier()
    assert time.monotonic() - start > 0.4


def test_barrier_waits_for_all():
    run_ranks(3, check_barrier)


def check_big(rank: int, size: int) -> None:
    x = torch.full((5_000_011,), float(rank + 1))
    dist.all_reduce(x)
    assert x.eq(size * (size + 1) / 2).all()
    y = torch.full((3_000_001,), rank, dtype=torch.int64)
    dist.broadcast(y, src=1)
    assert y.eq(1).all()


def test_big():
    run_ranks(2, check_big)


# ---- invalid input


def check_refusals(rank: int, size: int) -> None:
    x = torch.ones(4)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    refused = {
        "must be dense": lambda: backend.broadcast([torch.eye(3).to_sparse()]),
        "must be on the CPU": lambda: backend.allreduce([torch.ones(3, device="meta")]),
        "unsupported dtype": lambda: dist.broadcast(torch.ones(3).to(torch.float8_e8m0fnu), 0),
        "`tensors` must hold one entry.* holds 0": lambda: backend.allreduce([]),
        "`tensors` must hold one entry.* holds 2": lambda: backend.allreduce([x, x]),
        "several of its elements": lambda: dist.all_reduce(torch.ones(1).expand(4)),
        "one tensor per rank": lambda: dist.all_gather([x] * (size + 1), x),
        "this rank's own input": lambda: dist.all_gather([torch.ones(3)] * size, x),
        "has dtype Double": lambda: backend.allgather([[x.double()] * size], [x]),
        "`output` has 4 elements": lambda: gather_into(x.clone(), x, False),
        "`root` .* is not a rank of this group": lambda: backend.broadcast(x, size),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
    # A refused call has no effect: the group stays usable.
    assert backend._get_sequence_number_for_group() == before
    dist.all_reduce(x)
    assert x.eq(size).all()
    assert backend._get_sequence_number_for_group() == before + 1


def test_refusals():
    run_ranks(2, check_refusals)
