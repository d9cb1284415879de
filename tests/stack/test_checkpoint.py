"""Distributed checkpoints: each rank writes its part; any layout can be loaded into any other."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support.debug_levels import assert_equal, data, run_at_level, seeded
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 5))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    optimizer.zero_grad()
    model(data(rank, 4, 7)).square().mean().backward()
    optimizer.step()


def trained(rank: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = fully_shard(seeded(net, seed=seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 + seed)
    step(model, optimizer, rank)
    return model, optimizer


def tensors_of(size: int) -> dict:
    mesh = init_device_mesh("cpu", (size,))
    return {
        "rows": distribute_tensor(data(0, 7, 6), mesh, [Shard(0)]),
        "columns": distribute_tensor(data(1, 7, 6), mesh, [Shard(1)]),
        "whole": distribute_tensor(data(2, 7, 6), mesh, [Replicate()]),
        "plain": data(3, 5),
        "bf16": data(4, 5, dtype=torch.bfloat16),
    }


def other_tensors(size: int) -> dict:
    """A state to load into, with other layouts and other contents."""
    mesh = init_device_mesh("cpu", (size,))
    zeros = torch.zeros(7, 6, dtype=torch.float64)
    return {
        "rows": distribute_tensor(zeros, mesh, [Shard(1)]),
        "columns": distribute_tensor(zeros, mesh, [Replicate()]),
        "whole": distribute_tensor(zeros, mesh, [Shard(0)]),
        "plain": torch.zeros(5, dtype=torch.float64),
        "bf16": torch.zeros(5, dtype=torch.bfloat16),
    }


def full(state: dict) -> dict:
    return {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}


def model_and_optimizer(model, optimizer) -> dict:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def check_save(rank: int, size: int, directory: str, asynchronous: bool) -> dict:
    model, optimizer = trained(rank, seed=0)
    state = model_and_optimizer(model, optimizer)
    state |= {"tensors": tensors_of(size), "step": 41, "name": "a checkpoint"}
    if asynchronous:
        dcp.async_save(state, checkpoint_id=directory).result()
    else:
        dcp.save(state, checkpoint_id=directory)
    after = {name: p.full_tensor() for name, p in model.named_parameters()}
    return {name: p.numpy(force=True) for name, p in after.items()}


def check_load(rank: int, size: int, directory: str, weights: dict) -> None:
    model, optimizer = trained(rank, seed=5)
    state = model_and_optimizer(model, optimizer)
    state |= {"tensors": other_tensors(size), "step": 0, "name": ""}
    dcp.load(state, checkpoint_id=directory)
    assert_equal((state["step"], state["name"]), (41, "a checkpoint"), "plain values")
    expected = {"rows": 0, "columns": 1, "whole": 2}
    for name, tensor in full(state["tensors"]).items():
        if name in expected:
            assert_equal(tensor, data(expected[name], 7, 6), name)
    assert_equal(state["tensors"]["plain"], data(3, 5), "plain tensor")
    assert_equal(state["tensors"]["bf16"], data(4, 5, dtype=torch.bfloat16), "bf16 tensor")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    assert optimizer.param_groups[0]["lr"] == 0.01
    for name, p in model.named_parameters():
        assert_equal(p.full_tensor(), torch.from_numpy(weights[name]), name)
        assert optimizer.state[p]["step"] == 1
    step(model, optimizer, rank)  # the loaded model can be trained


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async_save"])
def test_checkpoint(on_ranks, tmp_path, asynchronous):
    """A checkpoint is written by 2 ranks and read by 4, and the reverse, and by one process."""
    directory = str(tmp_path / "checkpoint")
    weights = on_ranks(check_save, directory, asynchronous)[0]
    run_at_level(on_ranks.level, 6 - on_ranks.size, check_load, directory, weights)

    alone = {"model": {name: torch.zeros(w.shape).double() for name, w in weights.items()}}
    dcp.load(alone, checkpoint_id=directory, no_dist=True)
    for name, tensor in alone["model"].items():
        assert_equal(tensor, torch.from_numpy(weights[name]), name)


def check_missing(rank: int, size: int, directory: str) -> None:
    """One rank requests a key that does not exist: all ranks fail, and the group stays usable."""
    dcp.save({"x": data(0, 4)}, checkpoint_id=directory)
    wanted = {"x": torch.zeros(4).double(), **({"y": torch.zeros(2)} if rank == 1 else {})}
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: y"):
        dcp.load(wanted, checkpoint_id=directory)
    x = torch.ones(2)
    dist.all_reduce(x)
    assert_equal(x, torch.full((2,), float(size)), "the group afterwards")


def test_missing_key(on_ranks, tmp_path):
    on_ranks(check_missing, str(tmp_path / "checkpoint"))
