"""Functional collectives: as torch.compile uses them, and with gradients through them.

Each is compared with plain tensor operations on the list of all ranks' tensors in one process.
"""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as autograd_functions
import torch_ccl
from support.debug_levels import assert_close, assert_equal, data, run_at_level, seeded
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

# ---- results and gradients


def uneven(size: int) -> list[list[int]]:
    """The number of rows that rank `i` sends to rank `j`; some are 0."""
    return [[(i + 2 * j) % 3 for j in range(size)] for i in range(size)]


def exchanged(inputs: list[torch.Tensor], rows: list[list[int]]) -> list[torch.Tensor]:
    pieces = [x.split(r) for x, r in zip(inputs, rows, strict=True)]
    return [torch.cat([p[j] for p in pieces]) for j in range(len(inputs))]


def in_one_process(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    size = len(inputs)
    rows = [[x.size(0) // size] * size for x in inputs]
    match name:
        case "all_reduce":
            return [sum(inputs)] * size
        case "all_gather_single" | "all_gather_tensor":
            return [torch.cat(inputs)] * size
        case "all_gather_single dim 1":
            return [torch.cat(inputs, 1)] * size
        case "reduce_scatter_single" | "reduce_scatter_tensor":
            return list(sum(inputs).chunk(size))
        case "reduce_scatter_single dim 1":
            return list(sum(inputs).chunk(size, 1))
        case "all_to_all_single":
            return exchanged(inputs, rows)
        case "all_to_all_single uneven":
            return exchanged(
                [x[: sum(r)] for x, r in zip(inputs, uneven(size), strict=True)], uneven(size)
            )
    raise ValueError(name)


def over_ranks(name: str, x: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    group = dist.group.WORLD
    match name:
        case "all_reduce":
            return funcol.all_reduce(x, "sum", group)
        case "all_gather_single":
            return funcol.all_gather_single_autograd(x, 0, group)
        case "all_gather_tensor":
            return funcol.all_gather_tensor_autograd(x, 0, group)
        case "all_gather_single dim 1":
            return funcol.all_gather_single(x, 1, group)
        case "reduce_scatter_single":
            return funcol.reduce_scatter_single_autograd(x, "sum", 0, group)
        case "reduce_scatter_tensor":
            return funcol.reduce_scatter_tensor_autograd(x, "sum", 0, group)
        case "reduce_scatter_single dim 1":
            return funcol.reduce_scatter_single(x, "sum", 1, group)
        case "all_to_all_single":
            return funcol.all_to_all_single_autograd(x, None, None, group)
        case "all_to_all_single uneven":
            sent = uneven(size)[rank]
            received = [uneven(size)[r][rank] for r in range(size)]
            return funcol.all_to_all_single_autograd(x[: sum(sent)], received, sent, group)
    raise ValueError(name)


WITH_GRADIENT = [
    "all_reduce",
    "all_gather_single",
    "all_gather_tensor",
    "all_gather_single dim 1",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "reduce_scatter_single dim 1",
    "all_to_all_single",
    "all_to_all_single uneven",
]


def weighted(y: torch.Tensor, rank: int) -> torch.Tensor:
    """A loss that differs between ranks, so that gradients identify their origin."""
    return (y * torch.arange(1, y.numel() + 1).reshape(y.shape)).sum() * (rank + 1)


def check_gradients(rank: int, size: int) -> None:
    for name in WITH_GRADIENT:
        leaves = [data(r, 12, 8).requires_grad_() for r in range(size)]
        outputs = in_one_process(name, leaves)
        sum(weighted(y, r) for r, y in enumerate(outputs)).backward()
        x = data(rank, 12, 8).requires_grad_()
        y = over_ranks(name, x, rank, size)
        assert_close(y, outputs[rank], name)
        weighted(y, rank).backward()
        assert_close(x.grad, leaves[rank].grad, f"gradient of {name}")


def test_gradients(on_ranks):
    on_ranks(check_gradients)


def check_without_gradient(rank: int, size: int) -> None:
    group = dist.group.WORLD
    inputs = [data(r, 6, 4) for r in range(size)]
    mine = inputs[rank]
    stacked = torch.stack(inputs)
    expected = {"avg": stacked.mean(0), "min": stacked.amin(0), "max": stacked.amax(0)}
    expected["product"] = stacked.prod(0)
    for name, tensor in expected.items():
        assert_close(funcol.all_reduce(mine, name, group), tensor, name)
    assert_equal(mine, inputs[rank], "the input")  # is not changed
    for root in range(size):
        assert_equal(funcol.broadcast(mine, root, group) + 0, inputs[root], "broadcast")
    rotated = [(r + 1) % size for r in range(size)]  # where each rank sends to
    permuted = funcol.permute_tensor(mine.flatten(), rotated, group)
    assert_equal(permuted + 0, inputs[rank - 1].flatten(), "permute_tensor")

    several = [mine, mine[:3] * 2]
    everyones = [[x, x[:3] * 2] for x in inputs]
    sums = [sum(x[i] for x in everyones) for i in range(2)]
    for y, z in zip(funcol.all_reduce_coalesced(several, "sum", group), sums, strict=True):
        assert_close(y, z, "all_reduce_coalesced")
    gathered = funcol.all_gather_single_coalesced(several, group)
    for i, y in enumerate(gathered):
        assert_equal(y + 0, torch.cat([x[i] for x in everyones]), "all_gather_single_coalesced")
    several = [data(rank, size, 3), data(rank, 2 * size)]
    scattered = funcol.reduce_scatter_single_coalesced(several, "sum", [0, 0], group)
    for i, shape in enumerate([(size, 3), (2 * size,)]):
        total = sum(data(r, *shape) for r in range(size))
        assert_close(scattered[i], total.chunk(size)[rank], "reduce_scatter_single_coalesced")

    # several in flight, waited for in another order, and by the first use
    works = [funcol.all_reduce(mine * i, "sum", group) for i in range(5)]
    if not torch_ccl.fast_calls_enabled():  # with fast calls they are complete
        assert all(isinstance(y, funcol.AsyncCollectiveTensor) for y in works)
    for i in (3, 0, 4):
        assert_close(funcol.wait_tensor(works[i]), sum(inputs) * i, f"all_reduce {i}")
    assert_close(works[1] + works[2], sum(inputs) * 3, "used without wait")

    # by mesh and by a list of ranks
    mesh = dist.init_device_mesh("cpu", (size,))
    assert_close(funcol.all_reduce(mine, "sum", mesh), sum(inputs), "by mesh")
    assert_close(funcol.all_reduce(mine, "sum", (mesh, 0)), sum(inputs), "by mesh and dimension")
    assert_close(funcol.all_reduce(mine, "sum", list(range(size))), sum(inputs), "by ranks")


def test_without_gradient(on_ranks):
    on_ranks(check_without_gradient)


def check_autograd_functions(rank: int, size: int) -> None:
    """Checks torch.distributed.nn.functional, the older differentiable collectives.

    Not _all_gather_base: its backward knows the backends nccl and xccl only
    (torch 2.13, torch/distributed/nn/functional.py:437).
    """
    last = size - 1

    def scattered(x):
        pieces = (x if rank == last else x * 0).chunk(size)
        return autograd_functions.scatter(list(pieces), src=last)

    def gathered(x):
        y = torch.stack(autograd_functions.gather(x, dst=last))
        return y if rank == last else y * 0

    def swapped(x):
        pieces = list(x.chunk(size))
        empty = [torch.empty_like(p) for p in pieces]
        return torch.cat(autograd_functions.all_to_all(empty, pieces))

    cases = {
        "all_reduce": (autograd_functions.all_reduce, lambda xs: [sum(xs)] * size),
        "all_gather": (
            lambda x: torch.stack(autograd_functions.all_gather(x)),
            lambda xs: [torch.stack(xs)] * size,
        ),
        "broadcast": (
            lambda x: autograd_functions.broadcast(x, last),
            lambda xs: [xs[last]] * size,
        ),
        "reduce_scatter": (
            lambda x: autograd_functions.reduce_scatter(
                torch.empty_like(x[: 12 // size]), list(x.chunk(size))
            ),
            lambda xs: list(sum(xs).chunk(size)),
        ),
        "all_to_all": (
            swapped,
            lambda xs: exchanged(xs, [[12 // size] * size] * size),
        ),
        "all_to_all_single": (
            lambda x: autograd_functions.all_to_all_single(torch.empty_like(x), x),
            lambda xs: exchanged(xs, [[12 // size] * size] * size),
        ),
        "scatter": (scattered, lambda xs: list(xs[last].chunk(size))),
        "gather": (
            gathered,
            lambda xs: [torch.stack(xs) * (r == last) for r in range(size)],
        ),
    }
    for name, (collective, reference) in cases.items():
        leaves = [data(r, 12, 3).requires_grad_() for r in range(size)]
        outputs = reference(leaves)
        sum(weighted(y, r) for r, y in enumerate(outputs)).backward()
        x = data(rank, 12, 3).requires_grad_()
        y = collective(x)
        assert_close(y, outputs[rank], name)
        weighted(y, rank).backward()
        expected = leaves[rank].grad
        assert_close(
            x.grad, torch.zeros_like(x) if expected is None else expected, f"{name} gradient"
        )


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_autograd_functions(on_ranks):
    on_ranks(check_autograd_functions)


# ---- torch.compile


def everything(x: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Runs one collective of each kind, with arithmetic between them."""
    group = dist.group.WORLD
    y = funcol.all_reduce(x.relu() * 2, "sum", group) + 1
    z = funcol.all_gather_single(y * (rank + 1), 0, group).sin()
    w = funcol.reduce_scatter_single(z, "sum", 0, group)
    return funcol.all_to_all_single(w.exp(), None, None, group) - x


def everything_in_one_process(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    size = len(xs)
    y = sum(x.relu() * 2 for x in xs) + 1
    z = torch.cat([y * (r + 1) for r in range(size)]).sin()
    ws = [size * piece for piece in z.chunk(size)]
    v = exchanged([w.exp() for w in ws], [[12 // size] * size] * size)
    return [a - x for a, x in zip(v, xs, strict=True)]


def in_place(x: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Makes the ordinary calls, which the compiler rewrites to functional ones."""
    y = x * 2
    dist.all_reduce(y)
    gathered = torch.empty(size * 12, 8, dtype=y.dtype)
    dist.all_gather_single(gathered, y + rank)
    part = torch.empty(12, 8, dtype=y.dtype)
    dist.reduce_scatter_single(part, gathered)
    return part + 1


def in_place_in_one_process(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    y = sum(x * 2 for x in xs)
    return [len(xs) * (y + r) + 1 for r in range(len(xs))]


def assert_compiled(function, reference, backend: str, rank: int, size: int) -> None:
    leaves = [data(r, 12, 8).requires_grad_() for r in range(size)]
    outputs = reference(leaves)
    sum(weighted(y, r) for r, y in enumerate(outputs)).backward()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        x = data(rank, 12, 8).requires_grad_()
        y = compiled(x, rank, size)
        what = f"{function.__name__}, {backend}"
        assert_close(y, outputs[rank], what)
        weighted(y, rank).backward()
        assert_close(x.grad, leaves[rank].grad, f"gradient of {what}")


def check_compile(rank: int, size: int) -> None:
    assert_compiled(everything, everything_in_one_process, "aot_eager", rank, size)
    xs = [data(r, 12, 8) for r in range(size)]
    compiled = torch.compile(in_place, backend="aot_eager", fullgraph=True)
    assert_close(compiled(xs[rank], rank, size), in_place_in_one_process(xs)[rank], "in place")


def test_compile(on_ranks):
    on_ranks(check_compile)


def layers() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(400, 400), nn.Tanh()) for _ in range(4)])


def check_compiled_ddp(rank: int, size: int) -> None:
    """The graph is split at buckets, so that gradients are reduced while the rest is computed.

    Weights of 1.2 MB each, because a compiled model takes no buckets below 1 MB.
    """
    net = seeded(layers)
    model = torch.compile(DDP(net, bucket_cap_mb=1), backend="aot_eager")
    expected = seeded(layers)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, expected)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(data(rank, 5, 400, seed=step)).square().mean().backward()
        for r in range(size):
            (expected(data(r, 5, 400, seed=step)).square().mean() / size).backward()
        for optimizer in optimizers:
            optimizer.step()
    for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
        assert_close(p, q, name)


def test_compiled_ddp(on_ranks):
    on_ranks(check_compiled_ddp)


def summed(x: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    return funcol.all_reduce(x.sin() * (rank + 1), "sum", dist.group.WORLD)


def summed_in_one_process(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [sum(x.sin() * (r + 1) for r, x in enumerate(xs))] * len(xs)


def check_inductor(rank: int, size: int, cache: str) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    # The C++ compiler is slow: no pool of processes, no trials of instruction sets.
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.cpp.simdlen = 1
    torch._inductor.config.cpp_cache_precompile_headers = False
    assert_compiled(summed, summed_in_one_process, "inductor", rank, size)


@pytest.mark.slow
def test_inductor():
    """Compiles to C++; both levels in one test, because they share the compiled code."""
    with tempfile.TemporaryDirectory() as cache:
        for level in ("OFF", "DETAIL"):
            run_at_level(level, 2, check_inductor, cache, bound_s=100)
