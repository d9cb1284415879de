"""ZeroRedundancyOptimizer: each rank keeps the state of some parameters and broadcasts them."""

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from support.debug_levels import assert_close, assert_equal, assert_same_model, bits, data, seeded
from support.ranks import run_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 4


def perceptron() -> nn.Module:
    widths = [12, 20, 16, 24, 3]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*[nn.Sequential(layer, nn.Tanh()) for layer in layers])


def loss_of(net: nn.Module, rank: int, step: int) -> torch.Tensor:
    return net(data(rank, 5, 12, seed=step)).square().mean()


def one_process(size: int, first_update: int = 0):
    """Returns the model and its optimizer."""
    net = seeded(perceptron)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (loss_of(net, rank, step) / size).backward()
        if step >= first_update:
            optimizer.step()
    return net, optimizer


def check_zero(rank: int, size: int) -> bytes:
    expected, expected_optimizer = one_process(size)
    for as_bucket_view in (False, True):
        net = seeded(perceptron)
        model = DDP(net, bucket_cap_mb=0.0005)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            torch.optim.AdamW,
            parameters_as_bucket_view=as_bucket_view,
            lr=0.01,
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        what = f"parameters_as_bucket_view={as_bucket_view}"
        assert_same_model(net.named_parameters(), expected.named_parameters(), what)
    held = len(optimizer.optim.state)
    assert 0 < held < len(list(net.parameters())), held

    # the state of all ranks together, on one of them
    optimizer.consolidate_state_dict(to=size - 1)
    if rank == size - 1:
        together = optimizer.state_dict()["state"]
        alone = expected_optimizer.state_dict()["state"]
        assert_equal(together.keys(), alone.keys(), "parameters with state")
        for index, state in alone.items():
            for name, value in state.items():
                assert_close(together[index][name], value, f"{name} of parameter {index}")

    # saved and loaded again
    saved = [optimizer.state_dict()] if rank == size - 1 else [None]
    dist.broadcast_object_list(saved, src=size - 1)
    again = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.5)
    again.load_state_dict(copy.deepcopy(saved[0]))
    for trainer in (again, expected_optimizer):
        trainer.zero_grad()
    loss_of(model, rank, STEPS).backward()
    again.step()
    for r in range(size):
        (loss_of(expected, r, STEPS) / size).backward()
    expected_optimizer.step()
    assert_same_model(net.named_parameters(), expected.named_parameters(), "after loading")
    return bits(net)


def test_zero(on_ranks):
    weights = on_ranks(check_zero)
    assert all(w == weights[0] for w in weights)


def check_overlap(rank: int, size: int, make_hook=hook_with_zero_step) -> bytes:
    """The optimizer steps inside the backward pass, which torch refuses for Gloo."""
    net = seeded(perceptron)
    model = DDP(net, bucket_cap_mb=0.0005)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, overlap_with_ddp=True, lr=0.01
    )
    model.register_comm_hook(None, make_hook(allreduce_hook, model, optimizer))
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, rank, step).backward()
    # Buckets are known after the second step only; until then torch updates nothing.
    expected, _ = one_process(size, first_update=2)
    assert_same_model(net.named_parameters(), expected.named_parameters(), "weights")
    return bits(net)


def test_overlap(on_ranks):
    weights = on_ranks(check_overlap)
    assert all(w == weights[0] for w in weights)


@pytest.mark.parametrize("size", [2, 4])
def test_interleaved_overlap(size):
    """It broadcasts in the callbacks of all-reduces, while others are started.

    Not at level DETAIL: there every call first compares arguments over Gloo, in another order.
    """
    weights = run_ranks(size, check_overlap, hook_with_zero_step_interleaved)
    assert all(w == weights[0] for w in weights)
