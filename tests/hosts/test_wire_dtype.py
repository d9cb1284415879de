"""CCL_WIRE_DTYPE: the same bits on all ranks, errors within the bounds of docs/hosts.md."""

import itertools

import pytest
import torch
import torch.distributed as dist
from support.function_ranks import run_on_hosts
from support.virtual_hosts import virtual_hosts
from torch.nn.parallel import DistributedDataParallel
from torch_ccl import hooks

COUNT = 100_003
BLOCK = 128


@pytest.fixture(scope="module")
def hosts():
    with virtual_hosts(3) as made:
        yield made


def input_of(rank: int, count: int = COUNT) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator) * 10 ** (rank % 3)


def error_of(sum_of_host: torch.Tensor, wire_dtype: str) -> torch.Tensor:
    """The largest error of packing, by element; blocks may start at any offset."""
    if wire_dtype == "bf16":
        return sum_of_host.abs() / 256
    around = 2 * BLOCK - 1
    padded = sum_of_host.abs()[None, None]
    largest = torch.nn.functional.max_pool1d(padded, around, stride=1, padding=BLOCK - 1)
    return largest[0, 0] / 254 * 1.0001


def allowed(sums: list[torch.Tensor], wire_dtype: str, with_total: bool) -> torch.Tensor:
    errors = [error_of(each, wire_dtype) for each in sums]
    total = sum(sums)
    float32 = total.abs() * 1e-5 + 1e-5
    bound = sum(errors) + float32
    return bound + error_of(total.abs() + bound, wire_dtype) if with_total else bound


def check_sums(rank: int, size: int, wire_dtype: str, layout: list[int]) -> bytes:
    inputs = [input_of(other) for other in range(size)]
    ends = list(itertools.accumulate(layout))
    host_sums = [sum(inputs[end - own : end]) for own, end in zip(layout, ends, strict=True)]
    x = inputs[rank].clone()
    dist.all_reduce(x)
    exact = sum(i.double() for i in inputs)
    assert ((x - exact).abs() <= allowed(host_sums, wire_dtype, with_total=True)).all()
    assert not torch.equal(x, exact.float()), "nothing was packed"

    own = torch.empty(COUNT // size)
    whole = own.numel() * size
    dist.reduce_scatter_tensor(own, inputs[rank][:whole].clone())
    mine = slice(rank * own.numel(), (rank + 1) * own.numel())
    bound = allowed([s[mine] for s in host_sums], wire_dtype, with_total=False)
    assert ((own - exact[mine]).abs() <= bound).all()

    few = torch.full((10,), 1 + 2.0**-20)
    one = torch.empty(2)
    dist.reduce_scatter_tensor(one, few[:2].repeat(size))  # too short to be packed
    assert torch.equal(one, few[:2] * size)
    biggest = inputs[rank].clone()
    dist.all_reduce(biggest, dist.ReduceOp.MAX)  # is not packed
    assert torch.equal(biggest, torch.stack(inputs).amax(0))
    x[0] = torch.nan if rank == 0 else 1.0
    dist.all_reduce(x)
    assert x[0].isnan()
    return x[1000:].numpy().tobytes()


@pytest.mark.parametrize("layout", [[2, 2], [2, 1, 1]], ids=str)
@pytest.mark.parametrize("wire_dtype", ["bf16", "int8"])
def test_sums(hosts, wire_dtype, layout):
    results = run_on_hosts(
        hosts[: len(layout)], layout, check_sums, wire_dtype, layout, CCL_WIRE_DTYPE=wire_dtype
    )
    assert len(set(results)) == 1, "ranks differ"


def train_with(rank: int, size: int, hook_name: str | None) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(300, 300)))
    if hook_name:
        model.register_comm_hook(None, getattr(hooks, hook_name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 300)).square().mean().backward()
        optimizer.step()
    return [p.double().sum().item() for p in model.parameters()] + [
        p.abs().double().sum().item() for p in model.parameters()
    ]


@pytest.mark.parametrize("hook_name", ["bf16_between_hosts", "int8_between_hosts"])
@pytest.mark.parametrize("level", ["OFF", "DETAIL"])  # at which torch wraps the backend
def test_hooks(hosts, hook_name, level):
    exact = run_on_hosts(hosts[:2], [1, 1], train_with, None)
    packed = run_on_hosts(hosts[:2], [1, 1], train_with, hook_name, TORCH_DISTRIBUTED_DEBUG=level)
    assert packed[0] == packed[1], "ranks differ"
    assert packed[0] != exact[0], "nothing was packed"
    assert torch.allclose(torch.tensor(packed[0]), torch.tensor(exact[0]), rtol=1e-3, atol=1e-2)
