"""Runs ranks with a given TORCH_DISTRIBUTED_DEBUG, and compares tensors and models.

At DETAIL torch wraps the process group: before each collective the ranks compare its arguments
over an additional Gloo group. DDP checks and logs more, too.
"""

import importlib
import multiprocessing
import os
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from support.ranks import BOUND_S, PRELOADED, init_group, run_ranks

multiprocessing.get_context("forkserver").set_forkserver_preload(
    [
        *PRELOADED,
        "torch._inductor.compile_fx",
        "torch.distributed.algorithms.ddp_comm_hooks",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.optim",
        "torch.distributed.pipelining",
        "torch.distributed.tensor.parallel",
    ]
)

with warnings.catch_warnings():  # it warns 67 times that torch.jit is deprecated
    warnings.simplefilter("ignore")
    importlib.import_module("torch.distributed.optim")


def _at_level(rank, size, level, store, check, args):
    """The level is read when a group is created, so the rank's first group is destroyed."""
    torch.set_num_threads(1)
    dist.destroy_process_group()
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    dist.set_debug_level_from_env()
    init_group(rank, size, store)
    made = dist.group.WORLD._get_backend(torch.device("cpu"))
    wrapper = torch._C._distributed_c10d._ProcessGroupWrapper
    assert isinstance(made, wrapper) == (level == "DETAIL"), type(made)
    return check(rank, size, *args)


def run_at_level(level: str, size: int, check, *args, bound_s: float = BOUND_S) -> list:
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        return run_ranks(size, _at_level, level, store, check, args, bound_s=bound_s)


def data(rank: int, *shape: int, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    """The input of `rank`; every rank can compute the inputs of all."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def seeded(make, seed: int = 0, dtype=torch.float64) -> torch.nn.Module:
    """The same module for the same seed: one for the ranks, one as reference."""
    torch.manual_seed(seed)
    return make().to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str, tolerance=1e-11) -> None:
    """The tolerance is for sums of a few float64; a missing contribution is a larger error."""
    torch.testing.assert_close(
        actual.detach(),
        expected.detach(),
        rtol=tolerance,
        atol=tolerance,
        msg=lambda m: f"{what}: {m}",
    )


def assert_equal(actual, expected, what: str) -> None:
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
        same = torch.equal(actual.detach(), expected.detach())
    else:
        same = actual == expected
    assert same, f"{what}: {actual}, expected {expected}"


def assert_same_model(actual, expected, what: str, tolerance=1e-11) -> None:
    """Compares name by name; `actual` may be a state dict or pairs of names and tensors."""
    actual, expected = dict(actual), dict(expected)
    assert actual.keys() == expected.keys(), (what, actual.keys() ^ expected.keys())
    for name, tensor in expected.items():
        assert_close(actual[name], tensor, f"{what}, {name}", tolerance)


def bits(module: torch.nn.Module) -> bytes:
    return b"".join(
        p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in module.parameters()
    )
