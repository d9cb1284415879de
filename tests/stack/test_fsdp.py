"""FSDP1 and FSDP2: the weights must equal those of one process with all the data."""

import torch
import torch.distributed as dist
from support.debug_levels import (
    assert_close,
    assert_equal,
    assert_same_model,
    data,
    run_at_level,
    seeded,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import (
    FullStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

STEPS = 3
ALL = StateDictOptions(full_state_dict=True)


class Block(nn.Module):
    """Has sizes that 2 and 4 do not divide, so that shards are padded."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(7, 13)
        self.outer = nn.Linear(13, 7)

    def forward(self, x):
        return x + self.outer(self.inner(x).relu())


def stack_of_blocks() -> nn.Module:
    return nn.Sequential(Block(), Block(), nn.Linear(7, 3))


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def loss_of(net: nn.Module, rank: int, step: int, dtype=torch.float64) -> torch.Tensor:
    return net(data(rank, 4, 7, seed=step, dtype=dtype)).square().mean()


def one_process(size: int, clip: float | None = None, dtype=torch.float64):
    net = seeded(stack_of_blocks, dtype=dtype)
    optimizer = optimizer_of(net)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (loss_of(net, rank, step, dtype) / size).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return net, optimizer


# ---- FSDP1


def full_state(model: FSDP, everywhere: bool = True) -> dict[str, torch.Tensor]:
    config = FullStateDictConfig(rank0_only=not everywhere)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        return model.state_dict()


def fsdp1(net: nn.Module, **options) -> FSDP:
    options.setdefault("auto_wrap_policy", ModuleWrapPolicy({Block}))
    return FSDP(net, device_id=torch.device("cpu"), **options)


def check_fsdp1(rank: int, size: int) -> None:
    expected = one_process(size)[0].state_dict()
    strategies = [
        ShardingStrategy.FULL_SHARD,
        ShardingStrategy.SHARD_GRAD_OP,
        ShardingStrategy.NO_SHARD,
    ]
    for strategy in strategies:
        for use_orig_params in (False, True):
            model = fsdp1(
                seeded(stack_of_blocks),
                sharding_strategy=strategy,
                use_orig_params=use_orig_params,
            )
            optimizer = optimizer_of(model)
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, rank, step).backward()
                optimizer.step()
            what = f"{strategy.name}, original parameters: {use_orig_params}"
            assert_same_model(full_state(model), expected, what)
            if strategy == ShardingStrategy.FULL_SHARD:
                held = sum(p.numel() for p in model.parameters())
                total = sum(t.numel() for t in expected.values())
                assert held <= total / size + 3 * size, (what, held, total)


def test_fsdp1(on_ranks):
    on_ranks(check_fsdp1)


def check_fsdp1_details(rank: int, size: int) -> None:
    # clipping by the norm of all shards, which FSDP1 computes in float32 and from nothing wider
    # (torch 2.13, torch/distributed/fsdp/fully_sharded_data_parallel.py:2119)
    expected, expected_optimizer = one_process(size, clip=0.05, dtype=torch.float32)
    model = fsdp1(seeded(stack_of_blocks, dtype=torch.float32))
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, step, torch.float32).backward()
        norm = model.clip_grad_norm_(0.05)
        assert norm > 0.05
        optimizer.step()
    assert_same_model(full_state(model), expected.state_dict(), "clipped", 1e-4)

    # The whole state on rank 0 only; and on all, from there into a model with other weights.
    # sync_module_states=True, which would do that from rank 0, refuses parameters on the CPU
    # (torch 2.13, torch/distributed/fsdp/_init_utils.py:1176).
    state = full_state(model, everywhere=False)
    assert bool(state) == (rank == 0)
    loaded = fsdp1(seeded(stack_of_blocks, seed=5, dtype=torch.float32))
    everyones = full_state(model)
    with FSDP.state_dict_type(loaded, StateDictType.FULL_STATE_DICT):
        loaded.load_state_dict(everyones)
    for name, tensor in full_state(loaded).items():
        assert_equal(tensor, everyones[name], f"loaded {name}")
    moments = FSDP.optim_state_dict(model, optimizer)["state"]
    assert_equal(moments.keys(), dict(expected.named_parameters()).keys(), "optimizer's state")
    for name, p in expected.named_parameters():
        theirs = expected_optimizer.state[p]["exp_avg"]
        assert_close(moments[name]["exp_avg"], theirs, f"exp_avg {name}", 1e-4)

    # gradients accumulated over two steps before they are reduced
    model = fsdp1(seeded(stack_of_blocks), use_orig_params=True)
    with model.no_sync():
        loss_of(model, rank, 0).backward()
    loss_of(model, rank, 1).backward()
    expected = seeded(stack_of_blocks)
    for r in range(size):
        for step in range(2):
            (loss_of(expected, r, step) / size).backward()
    gradients = {name: p.grad for name, p in expected.named_parameters()}
    with FSDP.summon_full_params(model, with_grads=True):
        for name, p in model.named_parameters():
            clean = name.replace("_fsdp_wrapped_module.", "")
            assert_close(p.grad, gradients.pop(clean), f"no_sync {clean}")
    assert not gradients


def test_fsdp1_details(on_ranks):
    on_ranks(check_fsdp1_details)


def bf16_gradients(size: int) -> list[torch.Tensor]:
    """The mean over ranks of the gradients of a bfloat16 copy of the model, reduced in bfloat16."""
    copies = [seeded(stack_of_blocks, dtype=torch.float32).bfloat16() for _ in range(size)]
    for rank, net in enumerate(copies):
        loss_of(net, rank, 0, torch.bfloat16).backward()
    per_parameter = zip(*[net.parameters() for net in copies], strict=True)
    return [torch.stack([p.grad.float() for p in of_all]).mean(0) for of_all in per_parameter]


def assert_bf16_close(actual, expected, what) -> None:
    """Allows two units in the last place of a sum of terms of this size."""
    scale = expected.abs().max()
    assert (actual.float() - expected).abs().max() <= 2 * 2**-8 * scale, (what, actual, expected)


def check_mixed_precision(rank: int, size: int) -> None:
    expected = bf16_gradients(size)
    bf16 = torch.bfloat16
    model = fsdp1(
        seeded(stack_of_blocks, dtype=torch.float32),
        mixed_precision=MixedPrecision(param_dtype=bf16, reduce_dtype=bf16),
        use_orig_params=True,
    )
    loss_of(model, rank, 0, torch.float32).backward()
    with FSDP.summon_full_params(model, with_grads=True):
        for p, gradient in zip(model.parameters(), expected, strict=True):
            assert p.dtype == torch.float32
            assert_bf16_close(p.grad, gradient, "FSDP1")

    for reduce_dtype in (bf16, torch.float32):
        model = shard(
            seeded(stack_of_blocks, dtype=torch.float32),
            mp_policy=MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=reduce_dtype),
        )
        loss_of(model, rank, 0, torch.float32).backward()
        for p, gradient in zip(model.parameters(), expected, strict=True):
            assert p.dtype == torch.float32
            assert_bf16_close(p.grad.full_tensor(), gradient, f"FSDP2 {reduce_dtype}")


def test_mixed_precision(on_ranks):
    on_ranks(check_mixed_precision)


# ---- FSDP2


def shard(net: nn.Module, **options) -> nn.Module:
    for block in net:
        if isinstance(block, Block):
            fully_shard(block, **options)
    return fully_shard(net, **options)


def check_fsdp2(rank: int, size: int) -> None:
    expected, expected_optimizer = one_process(size)
    for reshard in (True, False):
        model = shard(seeded(stack_of_blocks), reshard_after_forward=reshard)
        for p in model.parameters():
            assert isinstance(p, DTensor)
            assert p.to_local().numel() <= -(-p.size(0) // size) * p.numel() // p.size(0)
        optimizer = optimizer_of(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        what = f"reshard_after_forward={reshard}"
        full = get_model_state_dict(model, options=ALL)
        assert_same_model(full, expected.state_dict(), what)
        for name, p in model.named_parameters():
            assert_close(p.full_tensor(), expected.get_parameter(name), f"{what} {name}")

    moments = get_optimizer_state_dict(model, optimizer, options=ALL)["state"]
    for name, p in expected.named_parameters():
        theirs = expected_optimizer.state[p]
        assert_close(moments[name]["exp_avg"], theirs["exp_avg"], f"exp_avg {name}")


def test_fsdp2(on_ranks):
    on_ranks(check_fsdp2)


def check_fsdp2_details(rank: int, size: int) -> None:
    # clipping, and loading rank 0's state
    expected, _ = one_process(size, clip=0.05)
    model = shard(seeded(stack_of_blocks, seed=rank))
    initial = seeded(stack_of_blocks).state_dict() if rank == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, initial, options=options)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05).full_tensor()
        assert norm > 0.05
        optimizer.step()
    full = get_model_state_dict(model, options=ALL)
    assert_same_model(full, expected.state_dict(), "clipped")

    # gradients accumulated without reduction; a custom factor instead of the mean
    model = shard(seeded(stack_of_blocks))
    model.set_requires_gradient_sync(False)
    loss_of(model, rank, 0).backward()
    model.set_requires_gradient_sync(True)
    for module in model.modules():
        if isinstance(module, (Block, nn.Sequential)):
            module.set_gradient_divide_factor(3.0)
    loss_of(model, rank, 1).backward()
    expected = seeded(stack_of_blocks)
    for r in range(size):
        for step in range(2):
            (loss_of(expected, r, step) / 3).backward()
    for name, p in model.named_parameters():
        gradient = expected.get_parameter(name).grad
        assert_close(p.grad.full_tensor(), gradient, f"accumulated {name}")


def test_fsdp2_details(on_ranks):
    on_ranks(check_fsdp2_details)


# ---- shards inside pairs, copies between them


def check_hybrid(rank: int, size: int) -> None:
    expected = one_process(size)[0].state_dict()
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))

    model = fsdp1(
        seeded(stack_of_blocks),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=mesh,
        use_orig_params=True,
    )
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    with FSDP.summon_full_params(model):
        for name, p in model.named_parameters():
            clean = name.replace("_fsdp_wrapped_module.", "")
            assert_close(p, expected[clean], f"FSDP1 {clean}")

    model = shard(seeded(stack_of_blocks), mesh=mesh)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        assert_close(p.full_tensor(), expected[name], f"FSDP2 {name}")


def test_hybrid(level):
    run_at_level(level, 4, check_hybrid)
