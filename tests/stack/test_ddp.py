"""DistributedDataParallel: the weights must equal those of one process with all the data."""

import pytest
import torch
import torch.distributed as dist
from support.debug_levels import assert_close, assert_equal, assert_same_model, bits, data, seeded
from support.ranks import run_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

STEPS = 3


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def one_process(net: nn.Module, size: int, steps: int = STEPS, forward=None) -> nn.Module:
    """Trains with the mean of all ranks' losses: its gradients are what DDP averages to."""
    forward = forward or (lambda net, rank, step: net(data(rank, 5, 12, seed=step)))
    optimizer = sgd(net)
    for step in range(steps):
        optimizer.zero_grad()
        losses = [forward(net, rank, step).square().mean() for rank in range(size)]
        (sum(losses) / size).backward()
        optimizer.step()
    return net


def train(model: nn.Module, rank: int, steps: int = STEPS, forward=None) -> None:
    forward = forward or (lambda net, rank, step: net(data(rank, 5, 12, seed=step)))
    optimizer = sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        forward(model, rank, step).square().mean().backward()
        optimizer.step()


def assert_all_same(weights: list[bytes]) -> None:
    assert weights[0] and all(w == weights[0] for w in weights)


# ---- buckets


def check_buckets(rank: int, size: int) -> bytes:
    net = seeded(perceptron, seed=rank)  # DDP takes rank 0's weights
    model = DDP(net, bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
    seen = []

    def hook(state, bucket):
        seen.append((bucket.index(), bucket.is_last()))
        return default_hooks.allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    train(model, rank)
    buckets = {index for index, _ in seen}
    assert len(buckets) >= 3, seen
    assert sum(last for _, last in seen) == STEPS, seen
    assert_same_model(
        net.named_parameters(), one_process(seeded(perceptron), size).named_parameters(), "weights"
    )

    # no hook, and gradients that are summed up over two steps before they are exchanged
    net = seeded(perceptron)
    model = DDP(net, bucket_cap_mb=0.0005)
    with model.no_sync():
        model(data(rank, 5, 12, seed=0)).square().mean().backward()
    model(data(rank, 5, 12, seed=1)).square().mean().backward()
    expected = seeded(perceptron)
    for r in range(size):
        for step in range(2):
            (expected(data(r, 5, 12, seed=step)).square().mean() / size).backward()
    for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
        assert_close(p.grad, q.grad, f"no_sync {name}")
    return bits(net)


def test_buckets(on_ranks):
    assert_all_same(on_ranks(check_buckets))


def batch_norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def check_buffers(rank: int, size: int) -> None:
    """Rank 0's running statistics are broadcast before each forward."""
    net = seeded(batch_norm_net)
    model = DDP(net, broadcast_buffers=True)
    for step in range(2):
        model(data(rank, 5, 12, seed=step)).sum().backward()
    expected = seeded(batch_norm_net)
    expected(data(0, 5, 12, seed=0))
    expected(data(rank, 5, 12, seed=1))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert_close(getattr(net[1], name), getattr(expected[1], name), name)


def test_buffers(on_ranks):
    on_ranks(check_buffers)


# ---- graphs that change, and one that does not


class Branches(nn.Module):
    """Uses one branch or both, and never `never`."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 8)
        self.left = nn.Linear(8, 3)
        self.right = nn.Linear(8, 3)
        self.never = nn.Linear(8, 3)

    def forward(self, x, which):
        x = self.stem(x).relu()
        branches = {"left": [self.left], "right": [self.right], "both": [self.left, self.right]}
        return sum(branch(x) for branch in branches[which])


def branch_of(rank: int, step: int) -> str:
    # in step 2 no rank takes the right branch
    return ("left", "right", "both")[rank % 3] if step < 2 else "left"


def branching(net, rank, step):
    return net(data(rank, 5, 12, seed=step), branch_of(rank, step))


def check_unused(rank: int, size: int) -> bytes:
    net = seeded(Branches)
    before = net.never.weight.clone()
    model = DDP(net, find_unused_parameters=True, bucket_cap_mb=0.001)
    train(model, rank, forward=branching)
    expected = one_process(seeded(Branches), size, forward=branching)
    assert_same_model(net.named_parameters(), expected.named_parameters(), "weights")
    assert net.never.weight.grad is None
    assert_equal(net.never.weight, before, "unused weight")
    assert net.right.weight.grad is None  # unused on all ranks in the last step
    return bits(net)


def test_unused_parameters(on_ranks):
    assert_all_same(on_ranks(check_unused))


def check_missing(rank: int, size: int) -> None:
    """Without find_unused_parameters torch names the parameter without a gradient."""
    model = DDP(seeded(Branches))
    model(data(rank, 5, 12), "left").sum().backward()
    named = "never.weight" if dist.get_debug_level() == dist.DebugLevel.DETAIL else "indices"
    with pytest.raises(RuntimeError, match=f"(?s)Expected to have finished reduction.*{named}"):
        model(data(rank, 5, 12), "left")
    x = torch.ones(3)
    dist.all_reduce(x)
    assert_equal(x, torch.full((3,), float(size)), "the group afterwards")


def test_missing_gradient_is_named(on_ranks):
    on_ranks(check_missing)


class Reused(nn.Module):
    """Uses one layer twice, the second time checkpointed; another layer is never used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.last = nn.Linear(12, 3)
        self.never = nn.Linear(12, 3)

    def forward(self, x):
        x = self.first(x).tanh()
        x = checkpoint(self.first, x, use_reentrant=True).tanh()
        return self.last(x)


def check_static_graph(rank: int, size: int) -> bytes:
    net = seeded(Reused)
    model = DDP(net, static_graph=True, bucket_cap_mb=0.001)
    train(model, rank, steps=4)
    expected = one_process(seeded(Reused), size, steps=4)
    assert_same_model(net.named_parameters(), expected.named_parameters(), "weights")
    return bits(net)


def test_static_graph(on_ranks):
    assert_all_same(on_ranks(check_static_graph))


# ---- ranks with different numbers of batches


def batches_of(rank: int) -> int:
    return 2 + rank


def expected_of_join(size: int, divide_by_all: bool) -> nn.Module:
    net = seeded(perceptron)
    optimizer = sgd(net)
    for step in range(batches_of(size - 1)):
        active = [rank for rank in range(size) if step < batches_of(rank)]
        optimizer.zero_grad()
        losses = [net(data(rank, 5, 12, seed=step)).square().mean() for rank in active]
        (sum(losses) / (size if divide_by_all else len(active))).backward()
        optimizer.step()
    return net


def check_join(rank: int, size: int) -> bytes:
    for divide_by_all in (True, False):
        net = seeded(perceptron)
        model = DDP(net, bucket_cap_mb=0.0005)
        with model.join(divide_by_initial_world_size=divide_by_all):
            train(model, rank, steps=batches_of(rank))
        # A rank without further batches takes the weights of the last one.
        expected = expected_of_join(size, divide_by_all)
        assert_same_model(
            net.named_parameters(), expected.named_parameters(), f"divide {divide_by_all}"
        )

    early = DDP(seeded(perceptron))
    with (
        pytest.raises(RuntimeError, match=r"exhausted (all )?inputs"),
        early.join(throw_on_early_termination=True),
    ):
        train(early, rank, steps=batches_of(rank))
    dist.barrier()
    return bits(net)


def test_join(on_ranks):
    assert_all_same(on_ranks(check_join))


# ---- communication hooks


def gradients(net: nn.Module, rank: int, rows: int = 5) -> list[torch.Tensor]:
    net.zero_grad()
    net(data(rank, rows, 12, dtype=torch.float32)).square().mean().backward()
    return [p.grad.clone() for p in net.parameters()]


def compressed_mean(per_rank: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The hook's definition, with our sums: in float32, in rank order."""
    total = torch.zeros_like(per_rank[0], dtype=torch.float32)
    for gradient in per_rank:
        total += gradient.to(dtype).div_(len(per_rank)).float()
    return total.to(dtype).to(per_rank[0].dtype)


def bf16_under_another_name(state, bucket):
    # CPU builds of torch refuse the two bfloat16 hooks by name in register_comm_hook
    # (torch 2.13, torch/nn/parallel/distributed.py:2485); the hook itself needs no accelerator.
    return default_hooks.bf16_compress_hook(state, bucket)


def check_compression(rank: int, size: int) -> None:
    if torch.version.cuda is None:
        refused = DDP(seeded(perceptron))
        with pytest.raises(TypeError, match="BF16 all reduce communication hook required CUDA"):
            refused.register_comm_hook(None, default_hooks.bf16_compress_hook)
    hooks = [
        (torch.bfloat16, bf16_under_another_name),
        (torch.float16, default_hooks.fp16_compress_hook),
        (torch.float16, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    ]
    everyones = [gradients(seeded(perceptron, dtype=torch.float32), r) for r in range(size)]
    for dtype, hook in hooks:
        net = seeded(perceptron, dtype=torch.float32)
        model = DDP(net, bucket_cap_mb=0.0005)
        model.register_comm_hook(None, hook)
        for step in range(2):  # the second with buckets in the order of use
            net.zero_grad()
            model(data(rank, 5, 12, dtype=torch.float32)).square().mean().backward()
            for (name, p), *of_all in zip(net.named_parameters(), *everyones, strict=True):
                expected = compressed_mean(of_all, dtype)
                assert_equal(p.grad, expected, f"{hook.__name__} step {step} {name}")


def test_compression(on_ranks):
    """Results are compared bit by bit."""
    on_ranks(check_compression)


def check_power_sgd(rank: int, size: int, bucket_cap_mb: float | None = None) -> bytes:
    """One row per rank: the mean gradient has at most `size` singular values, and 4 are kept.

    Not batched_powerSGD_hook: its matrices are flat where _orthogonalize wants a batch of them
    (torch 2.13, ddp_comm_hooks/powerSGD_hook.py:808 and :25).
    """
    net = seeded(perceptron)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1
    )
    model = DDP(net, bucket_cap_mb=bucket_cap_mb)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    expected = seeded(perceptron)
    for step in range(4 if bucket_cap_mb is None else 12):
        net.zero_grad()
        expected.zero_grad()
        model(data(rank, 1, 12, seed=step)).square().mean().backward()
        for r in range(size):
            (expected(data(r, 1, 12, seed=step)).square().mean() / size).backward()
        for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
            assert_close(p.grad, q.grad, f"step {step} {name}", 1e-6)
    assert state.compression_stats()[0] > 1, state.compression_stats()
    return b"".join(p.grad.numpy().tobytes() for p in net.parameters())


def test_power_sgd(on_ranks):
    assert_all_same(on_ranks(check_power_sgd))


@pytest.mark.parametrize("size", [2, 4])
def test_power_sgd_with_several_buckets(size):
    """The hook starts collectives in callbacks, while the next bucket's are started.

    Not at level DETAIL: there every call first compares arguments over Gloo, in another order.
    """
    assert_all_same(run_ranks(size, check_power_sgd, 0.0005))


def check_error_feedback(rank: int, size: int) -> None:
    """The error of a lossy step is kept and added to the next step.

    Per step: result + mean of the ranks' errors after = mean gradient + mean error before.
    """
    net = nn.Linear(20, 10, bias=False).double()
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )
    model = DDP(net)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    error_before = torch.zeros(200, dtype=torch.float64)
    for step in range(5):
        net.zero_grad()
        model(data(rank, 5, 20, seed=step)).square().mean().backward()
        mean_gradient = torch.zeros(10, 20, dtype=torch.float64)
        for r in range(size):
            alone = nn.Linear(20, 10, bias=False).double()
            alone.load_state_dict(net.state_dict())
            alone(data(r, 5, 20, seed=step)).square().mean().backward()
            mean_gradient += alone.weight.grad / size
        if step < 2:
            assert_close(net.weight.grad, mean_gradient, f"step {step}, not compressed yet")
            continue
        (error,) = state.error_dict.values()
        error_after = error.clone()
        dist.all_reduce(error_after)
        error_after /= size
        assert_close(
            net.weight.grad.flatten() + error_after,
            mean_gradient.flatten() + error_before,
            f"step {step}",
        )
        assert error_after.norm() > 0.1 * mean_gradient.norm()  # rank 1 is lossy
        error_before = error_after
    assert state.compression_stats()[0] > 1


def test_power_sgd_error_feedback(on_ranks):
    on_ranks(check_error_feedback)


def check_local_sgd(rank: int, size: int) -> None:
    """Gradients are averaged globally for 2 steps, then only inside pairs."""
    pairs = [dist.new_group([r, r + 1]) for r in range(0, size, 2)]
    mine = range(rank - rank % 2, rank - rank % 2 + 2)
    state = PostLocalSGDState(None, pairs[rank // 2], start_localSGD_iter=2)
    net = seeded(perceptron)
    model = DDP(net)
    model.register_comm_hook(state, post_localSGD_hook)
    for step in range(4):
        net.zero_grad()
        model(data(rank, 5, 12, seed=step)).square().mean().backward()
        members = range(size) if step < 2 else mine
        expected = seeded(perceptron)
        for r in members:
            loss = expected(data(r, 5, 12, seed=step)).square().mean()
            (loss / len(members)).backward()
        for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
            assert_close(p.grad, q.grad, f"step {step} {name}")


def test_local_sgd(on_ranks):
    on_ranks(check_local_sgd)
