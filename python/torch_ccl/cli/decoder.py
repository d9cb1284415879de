"""A transformer that decodes one token at a time, on one rank or cut over several.

`qkv` holds query, key and value of one head next to each other, so that a cut of its rows gives
every rank whole heads, by hand and by DTensor alike.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

WARM_UP = 4


@dataclass(frozen=True)
class Shape:
    hidden: int = 512
    dtype: str = "float32"
    layers: int = 8
    tokens: int = 64
    #: without them the output is wrong, which the check must notice
    with_reductions: bool = True

    @property
    def heads(self) -> int:
        return max(2, self.hidden // 64)

    @property
    def tolerance(self) -> float:
        return 5e-2 if self.dtype == "bfloat16" else 1e-4


def leave(x: torch.Tensor) -> torch.Tensor:
    return x


class Block(nn.Module):
    """Attention and MLP; `reduce` adds up what the ranks have after each of them."""

    def __init__(self, shape: Shape, size: int = 1, reduce=leave):
        super().__init__()
        hidden, part = shape.hidden, shape.hidden // size
        self.head_size = hidden // shape.heads
        self.qkv = nn.Linear(hidden, 3 * part, bias=False)
        self.out = nn.Linear(part, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * part, bias=False)
        self.down = nn.Linear(4 * part, hidden, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.reduce = reduce
        self.cache: list[torch.Tensor] = []

    def forget(self, heads: int, tokens: int) -> None:
        like = self.norms[0].weight
        self.cache = [like.new_zeros(heads, tokens, self.head_size) for _ in range(2)]

    def attend(self, x: torch.Tensor, position: int) -> torch.Tensor:
        query, *new = self.qkv(x).view(-1, 3, self.head_size).unbind(1)
        for kept, fresh in zip(self.cache, new, strict=True):
            kept[:, position] = fresh
        keys, values = (kept[None, :, : position + 1] for kept in self.cache)
        y = functional.scaled_dot_product_attention(query[None, :, None], keys, values)
        return self.out(y.reshape(1, -1))

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        x = x + self.reduce(self.attend(self.norms[0](x), position))
        return x + self.reduce(self.down(functional.gelu(self.up(self.norms[1](x)))))


class Decoder(nn.Module):
    def __init__(self, shape: Shape, size: int = 1, reduce=leave):
        super().__init__()
        self.shape, self.size = shape, size
        self.blocks = nn.ModuleList(Block(shape, size, reduce) for _ in range(shape.layers))
        self.to(getattr(torch, shape.dtype))

    @torch.no_grad()
    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, position)
        return x

    def decode(self) -> tuple[float, torch.Tensor]:
        """Seconds for all tokens, and the output of each."""
        shape = self.shape
        inputs = torch.randn(shape.tokens, 1, shape.hidden, generator=seeded(1))
        inputs = inputs.to(getattr(torch, shape.dtype))
        for block in self.blocks:
            block.forget(shape.heads // self.size, shape.tokens)
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


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def whole_decoder(shape: Shape) -> Decoder:
    """The same weights on every rank."""
    model = Decoder(shape)
    random = seeded(0)
    with torch.no_grad():
        for block in model.blocks:
            for linear in (block.qkv, block.out, block.up, block.down):
                scale = linear.in_features**-0.5
                weight = torch.randn(linear.weight.shape, generator=random) * scale
                linear.weight.copy_(weight)
    return model


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def cut_by_hand(whole: Decoder, rank: int, size: int, reduce=all_reduce) -> Decoder:
    """As Megatron does: two all-reduces in each layer."""
    model = Decoder(whole.shape, size, reduce if whole.shape.with_reductions else leave)
    with torch.no_grad():
        for block, source in zip(model.blocks, whole.blocks, strict=True):
            for name, dim in (("qkv", 0), ("up", 0), ("out", 1), ("down", 1)):
                part = getattr(source, name).weight.chunk(size, dim)[rank]
                getattr(block, name).weight.copy_(part)
    return model


def cut_by_dtensor(whole: Decoder, size: int) -> Decoder:
    """Changes `whole` itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (size,))
    for block in whole.blocks:
        plan = {
            "qkv": ColwiseParallel(),
            "out": RowwiseParallel(),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(),
        }
        parallelize_module(block, mesh, plan)
    whole.size = size
    return whole
