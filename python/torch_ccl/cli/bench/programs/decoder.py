"""A transformer that decodes one token at a time, on one rank or sharded over several.

`qkv` has the rows of a head's query, key and value next to each other, so that sharding its rows
gives every rank complete heads, explicitly and with DTensor alike.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

WARM_UP = 4

Reduction = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    hidden: int = 512
    dtype: str = "float32"
    layers: int = 8
    tokens: int = 64
    #: False gives a wrong output, for the test of the check
    with_reductions: bool = True

    @property
    def heads(self) -> int:
        return max(2, self.hidden // 64)

    @property
    def tolerance(self) -> float:
        return 5e-2 if self.dtype == "bfloat16" else 1e-4


def identity(x: torch.Tensor) -> torch.Tensor:
    return x


class Block(nn.Module):
    """Attention and MLP; `reduce` sums the partial results of the ranks after each of them."""

    def __init__(self, shape: Shape, size: int, reduce: Reduction):
        super().__init__()
        hidden, part = shape.hidden, shape.hidden // size
        self.head_size = hidden // shape.heads
        self.qkv = nn.Linear(hidden, 3 * part, bias=False)
        self.out = nn.Linear(part, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * part, bias=False)
        self.down = nn.Linear(4 * part, hidden, bias=False)
        self.attention_norm = nn.RMSNorm(hidden)
        self.mlp_norm = nn.RMSNorm(hidden)
        self.reduce = reduce
        self.cache: list[torch.Tensor] = []  # keys and values

    def reset_cache(self, heads: int, tokens: int) -> None:
        like = self.mlp_norm.weight
        self.cache = [like.new_zeros(heads, tokens, self.head_size) for _ in range(2)]

    def attend(self, x: torch.Tensor, position: int) -> torch.Tensor:
        query, *key_value = self.qkv(x).view(-1, 3, self.head_size).unbind(1)
        for cached, new in zip(self.cache, key_value, strict=True):
            cached[:, position] = new
        keys, values = (cached[None, :, : position + 1] for cached in self.cache)
        y = functional.scaled_dot_product_attention(query[None, :, None], keys, values)
        return cast(torch.Tensor, self.out(y.reshape(1, -1)))

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        x = x + self.reduce(self.attend(self.attention_norm(x), position))
        return x + self.reduce(self.down(functional.gelu(self.up(self.mlp_norm(x)))))


class Decoder(nn.Module):
    def __init__(self, shape: Shape, size: int = 1, reduce: Reduction = identity):
        super().__init__()
        self.shape, self.size = shape, size
        self.layers = nn.ModuleList(Block(shape, size, reduce) for _ in range(shape.layers))
        self.to(getattr(torch, shape.dtype))

    @property
    def blocks(self) -> list[Block]:
        return cast(list[Block], list(self.layers))

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, position)
        return x

    def decode(self) -> tuple[float, torch.Tensor]:
        """Seconds for all tokens, and the output of each token."""
        shape = self.shape
        inputs = torch.randn(shape.tokens, 1, shape.hidden, generator=generator_of(1))
        inputs = inputs.to(getattr(torch, shape.dtype))
        for block in self.blocks:
            block.reset_cache(shape.heads // self.size, shape.tokens)
        for position in range(min(WARM_UP, shape.tokens)):
            self(inputs[position], position)
        if dist.is_initialized():
            dist.barrier()
        outputs = []
        start = time.perf_counter()
        for position in range(shape.tokens):
            outputs.append(self(inputs[position], position))
        seconds = time.perf_counter() - start
        return seconds, torch.cat(outputs).float()


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def full_decoder(shape: Shape) -> Decoder:
    """The same weights on every rank."""
    model = Decoder(shape)
    generator = generator_of(0)
    with torch.no_grad():
        for block in model.blocks:
            for linear in (block.qkv, block.out, block.up, block.down):
                scale = linear.in_features**-0.5
                weight = torch.randn(linear.weight.shape, generator=generator) * scale
                linear.weight.copy_(weight)
    return model


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def shard_explicitly(
    full: Decoder, rank: int, size: int, reduce: Reduction = all_reduce
) -> Decoder:
    """Shards as Megatron-LM does, with two all-reduces in each layer."""
    model = Decoder(full.shape, size, reduce if full.shape.with_reductions else identity)
    with torch.no_grad():
        for block, source in zip(model.blocks, full.blocks, strict=True):
            for name, dim in (("qkv", 0), ("up", 0), ("out", 1), ("down", 1)):
                shard = getattr(source, name).weight.chunk(size, dim)[rank]
                getattr(block, name).weight.copy_(shard)
    return model


def shard_with_dtensor(full: Decoder, size: int) -> Decoder:
    """Changes `full` in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size,))
    for block in full.blocks:
        plan = {
            "qkv": ColwiseParallel(),
            "out": RowwiseParallel(),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(),
        }
        parallelize_module(block, mesh, plan)
    full.size = size
    return full
