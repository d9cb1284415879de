"""torch.ops.torch_ccl: results, gradients, versions, shapes and torch.compile."""

import pytest
import torch
import torch.distributed as dist
from support.parameters import slow
from support.ranks import run_ranks

ops = torch.ops.torch_ccl


def group_name() -> str:
    return dist.group.WORLD.group_name


def of_rank(rank: int, *shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 10.0 * rank


def check_results(rank: int, size: int) -> None:
    name = group_name()
    all_ranks = [of_rank(r, size * 2, 3) for r in range(size)]
    own = all_ranks[rank]
    total = torch.stack(all_ranks).sum(0)

    x = own.clone()
    assert ops.all_reduce_(x, "sum", name) is None
    assert x.equal(total)
    strided = own.t().contiguous().t()
    ops.all_reduce_(strided, "max", name)
    assert strided.equal(all_ranks[-1])

    assert ops.all_reduce(own, "sum", name).equal(total)
    assert ops.all_reduce(own, "avg", name).allclose(total / size)
    assert own.equal(all_ranks[rank])
    assert ops.all_gather(own, name).equal(torch.cat(all_ranks))
    assert ops.reduce_scatter(own, "sum", name).equal(total.chunk(size)[rank])
    x = own.clone()
    ops.broadcast_(x, 1, name)
    assert x.equal(all_ranks[1])

    half = dist.new_group([0, 1])
    if rank < 2:
        x = own.to(torch.bfloat16)
        ops.all_reduce_(x, "sum", half.group_name)
        assert x.equal((all_ranks[0] + all_ranks[1]).to(torch.bfloat16))
    gloo = dist.new_group(backend="gloo")
    assert ops.all_reduce(own, "sum", gloo.group_name).equal(total)


def test_results():
    run_ranks(3, check_results)


def check_refused(rank: int, size: int) -> None:
    x = torch.ones(3)
    for call, error, words in (
        (lambda: ops.all_reduce_(x, "mean", group_name()), ValueError, "not mean"),
        (lambda: ops.reduce_scatter(x, "sum", group_name()), ValueError, "it has size 3"),
        (lambda: ops.all_gather(torch.tensor(1.0), group_name()), ValueError, "first dimension"),
        (lambda: ops.all_reduce_(x, "sum", "no such group"), RuntimeError, "no such group"),
    ):
        with pytest.raises(error, match=words):
            call()
    y = torch.ones(3, requires_grad=True)
    for call in (
        lambda: ops.all_reduce_(y, "sum", group_name()),
        lambda: ops.broadcast_(y, 0, group_name()),
    ):
        with pytest.raises(RuntimeError, match="requires grad"):
            call()
    with torch.no_grad():
        version = y._version
        ops.all_reduce_(y, "sum", group_name())
        assert y._version == version + 1
    with torch.inference_mode():
        z = torch.ones(3)
        ops.all_reduce_(z, "sum", group_name())
        assert z.eq(size).all()


def test_refused():
    run_ranks(2, check_refused)


def check_gradients(rank: int, size: int) -> None:
    """Each rank's loss weighs its result; the gradient is that of the sum of all losses."""
    name = group_name()
    weights = [of_rank(r, size * 2, 3).cos() for r in range(size)]

    def gradient(operator, weight):
        x = of_rank(rank, size * 2, 3).requires_grad_()
        (operator(x) * weight).sum().backward()
        return x.grad

    total = torch.stack(weights).sum(0)
    assert gradient(lambda x: ops.all_reduce(x, "sum", name), weights[rank]).allclose(total)
    average = gradient(lambda x: ops.all_reduce(x, "avg", name), weights[rank])
    assert average.allclose(total / size)

    gathered = [torch.cat([w * (r + 1) for w in weights]) for r in range(size)]
    expected = torch.stack(gathered).sum(0).chunk(size)[rank]
    assert gradient(lambda x: ops.all_gather(x, name), gathered[rank]).allclose(expected)

    scattered = [w[:2] for w in weights]
    expected = torch.cat(scattered)
    result = gradient(lambda x: ops.reduce_scatter(x, "sum", name), scattered[rank])
    assert result.allclose(expected)
    result = gradient(lambda x: ops.reduce_scatter(x, "avg", name), scattered[rank])
    assert result.allclose(expected / size)

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="max has no gradient"):
        ops.all_reduce(x, "max", name).sum().backward()


def test_gradients():
    run_ranks(2, check_gradients)


def check_compiled(rank: int, size: int, backend: str) -> None:
    name = group_name()

    @torch.compile(backend=backend, fullgraph=True)
    def step(x):
        y = x * 2
        ops.all_reduce_(y, "sum", name)
        z = ops.all_reduce(y + 1, "max", name)
        return z, ops.all_gather(x, name), ops.reduce_scatter(z, "avg", name)

    for length in (4, 6, 8):  # from the second one on with a dynamic shape
        x = of_rank(rank, length)
        inputs = [of_rank(r, length) for r in range(size)]
        z = 2 * sum(inputs) + 1
        got = step(x)
        for result, expected in zip(got, (z, torch.cat(inputs), z.chunk(size)[rank]), strict=True):
            assert result.allclose(expected)

    weight = of_rank(rank, 4).requires_grad_()
    torch.compile(lambda w: ops.all_reduce(w * w, "sum", name), backend=backend)(
        weight
    ).sum().backward()
    assert weight.grad.allclose(2 * size * of_rank(rank, 4))


@pytest.mark.parametrize("backend", ["aot_eager", slow("inductor")])
def test_compiled(backend):
    run_ranks(2, check_compiled, backend, bound_s=100)
