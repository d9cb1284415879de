"""Device meshes, DTensor and tensor parallelism, each against plain tensors in one process."""

import pytest
import torch
import torch.distributed as dist
from support.debug_levels import assert_close, assert_equal, data, run_at_level, seeded
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor import ones as dtensor_ones
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

# ---- meshes


def check_line(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    assert mesh.size() == size and mesh.get_local_rank() == rank
    assert mesh.get_group() is dist.group.WORLD and mesh.mesh.tolist() == list(range(size))
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x, group=mesh.get_group())
    assert_equal(x.item(), size * (size + 1) / 2, "sum over the mesh")


def test_line(on_ranks):
    on_ranks(check_line)


def check_grid(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    row, column = rank // 2, rank % 2
    assert list(mesh.get_coordinate()) == [row, column] and mesh.shape == (2, 2)
    groups = {"row": [column, column + 2], "column": [2 * row, 2 * row + 1]}
    for name, members in groups.items():
        group = mesh[name].get_group()
        assert dist.get_process_group_ranks(group) == members
        assert dist.get_backend(group) == dist.get_backend()
        assert mesh.get_local_rank(name) == members.index(rank)
        x = torch.tensor([2.0**rank])
        dist.all_reduce(x, group=group)
        assert_equal(x.item(), sum(2.0**r for r in members), f"sum over {name}")
        everyones = [None] * 2
        dist.all_gather_object(everyones, rank, group=group)
        assert_equal(everyones, members, f"objects over {name}")
    flat = mesh._flatten("all")
    x = torch.tensor([2.0**rank])
    dist.all_reduce(x, group=flat.get_group())
    assert_equal(x.item(), 15.0, "sum over the flattened mesh")


def test_grid(level):
    run_at_level(level, 4, check_grid)


# ---- placements


def check_redistribute(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    for shape in [(8, 12), (7, 5), (size - 1, 3), (1, 9)]:  # also ranks without an element
        whole = data(0, *shape)
        placements = [Replicate(), Shard(0), Shard(1)]
        for source in placements:
            # only rank 0's tensor is used
            start = distribute_tensor(whole if rank == 0 else data(9, *shape), mesh, [source])
            for target in placements:
                moved = start.redistribute(mesh, [target])
                what = f"{shape} {source} -> {target}"
                assert moved.placements == (target,), what
                assert_equal(moved.full_tensor(), whole, what)
                if isinstance(target, Shard):
                    pieces = [*whole.chunk(size, target.dim), *[whole.new_empty(0)] * size]
                    assert_equal(moved.to_local().flatten(), pieces[rank].flatten(), what)
        total = sum(data(r, *shape) for r in range(size))
        for target in placements:
            part = DTensor.from_local(data(rank, *shape), mesh, [Partial()])
            moved = part.redistribute(mesh, [target])
            assert_close(moved.full_tensor(), total, f"{shape} partial sums -> {target}")
        part = DTensor.from_local(data(rank, *shape), mesh, [Partial("max")])
        largest = torch.stack([data(r, *shape) for r in range(size)]).amax(0)
        assert_equal(part.full_tensor(), largest, f"{shape} partial maxima")
        part = DTensor.from_local(data(rank, *shape), mesh, [Partial("avg")])
        assert_close(part.full_tensor(), total / size, f"{shape} partial means")


def test_redistribute(on_ranks):
    on_ranks(check_redistribute)


def check_arithmetic(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    a, b = data(0, 8, 12), data(1, 12, 8)
    for left in (Shard(0), Shard(1), Replicate()):
        for right in (Shard(0), Shard(1), Replicate()):
            x = distribute_tensor(a.clone().requires_grad_(), mesh, [left])
            y = distribute_tensor(b.clone().requires_grad_(), mesh, [right])
            p, q = a.clone().requires_grad_(), b.clone().requires_grad_()
            what = f"{left} @ {right}"
            product = x @ y
            assert_close(product.full_tensor(), p @ q, what)
            assert_close(x.sum(0).full_tensor(), p.sum(0), f"{what} sum")
            softmax = (x @ y).softmax(1).square().sum()
            expected = (p @ q).softmax(1).square().sum()
            assert_close(softmax.full_tensor(), expected, f"{what} softmax")
            softmax.backward()
            expected.backward()
            assert_close(x.grad.full_tensor(), p.grad, f"{what} gradient")
            assert_close(y.grad.full_tensor(), q.grad, f"{what} gradient")
    ones = dtensor_ones(7, device_mesh=mesh, placements=[Shard(0)])
    assert_equal(ones.sum().full_tensor().item(), 7, "sum of ones")


def test_arithmetic(on_ranks):
    on_ranks(check_arithmetic)


# ---- tensor parallelism


class Attention(nn.Module):
    """4 heads; a rank has the heads of its columns."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        x = self.norm(x)
        parts = [f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.query, self.key)]
        value = self.value(x).unflatten(-1, (-1, 4)).transpose(1, 2)
        y = torch.softmax(parts[0] @ parts[1].transpose(-1, -2), -1) @ value
        return self.out(y.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.perceptron = Perceptron()
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        x = x + self.attention(x)
        return self.head(self.norm(x + self.perceptron(x)))


PLAN = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "perceptron.up": ColwiseParallel(),
    "perceptron.down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}
TARGETS = torch.tensor([[0, 3, 1, 7], [2, 2, 6, 5]])


def cross_entropy(output: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), TARGETS.flatten())


def assert_gradients(model: nn.Module, expected: nn.Module, what: str) -> None:
    for name, p in model.named_parameters():
        gradient = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        assert_close(gradient, expected.get_parameter(name).grad, f"{what}, gradient of {name}")


def check_tensor_parallel(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    expected = seeded(Model)
    x = data(0, 2, 4, 16)
    expected_output = expected(x)
    cross_entropy(expected_output).backward()

    model = parallelize_module(seeded(Model), mesh, PLAN)
    assert model.perceptron.up.weight.to_local().shape == (64 // size, 16)
    assert model.perceptron.down.weight.to_local().shape == (16, 64 // size)
    output = model(x)
    assert_close(output, expected_output, "output")
    cross_entropy(output).backward()
    assert_gradients(model, expected, "tensor parallel")

    # the loss of logits that stay sharded by class
    plan = {**PLAN, "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    model = parallelize_module(seeded(Model), mesh, plan)
    with loss_parallel():
        loss = cross_entropy(model(x))
        assert_close(loss.full_tensor(), cross_entropy(expected_output), "loss")
        loss.backward()
    assert_gradients(model, expected, "loss_parallel")


def test_tensor_parallel(on_ranks):
    on_ranks(check_tensor_parallel)


def sequence_net() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(16), Perceptron(), nn.LayerNorm(16))


def check_sequence_parallel(rank: int, size: int) -> None:
    """Activations are sharded by position outside, weights by column and row inside."""
    mesh = init_device_mesh("cpu", (size,))
    expected = seeded(sequence_net)
    x = data(0, 2, 8, 16)
    expected_output = expected(x)
    expected_output.square().mean().backward()
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        "0": SequenceParallel(),
        "1": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "1.up": ColwiseParallel(),
        "1.down": RowwiseParallel(output_layouts=Shard(1)),
        "2": SequenceParallel(use_local_output=False),
    }
    model = parallelize_module(seeded(sequence_net), mesh, plan)
    output = model(x)
    assert output.to_local().shape == (2, 8 // size, 16)
    assert_close(output.full_tensor(), expected_output, "output")
    output.square().mean().backward()
    assert_gradients(model, expected, "sequence parallel")


def test_sequence_parallel(on_ranks):
    on_ranks(check_sequence_parallel)


def check_two_dimensions(rank: int, size: int) -> None:
    """Tensor parallelism inside rows and FSDP2 across them: training ends with the same weights."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(seeded(Model), mesh["tensor"], PLAN)
    for part in (model.attention, model.perceptron, model):
        fully_shard(part, mesh=mesh["data"])
    expected = seeded(Model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, expected)]
    row = mesh.get_local_rank("data")
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        cross_entropy(model(data(row, 2, 4, 16, seed=step))).backward()
        for r in range(2):
            (cross_entropy(expected(data(r, 2, 4, 16, seed=step))) / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, p in model.named_parameters():
        assert_close(p.full_tensor(), expected.get_parameter(name), name)


def test_two_dimensions(level):
    run_at_level(level, 4, check_two_dimensions)


def check_distribute_module(rank: int, size: int) -> None:
    """Rank 0's weights are used; a call with a plain tensor is refused and has no effect."""
    mesh = init_device_mesh("cpu", (size,))
    model = distribute_module(seeded(Perceptron, seed=rank), mesh)
    expected = seeded(Perceptron)
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        model(data(0, 4, 16))
    x = distribute_tensor(data(0, 4, 16), mesh, [Shard(0)])
    assert_close(model(x).full_tensor(), expected(data(0, 4, 16)), "output")


def test_distribute_module(on_ranks):
    on_ranks(check_distribute_module)
