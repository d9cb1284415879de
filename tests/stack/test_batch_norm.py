"""SyncBatchNorm on the CPU: torch refuses it; a replacement by one all_reduce.

Torch refuses it in training, and in DDP, before it communicates (torch 2.13,
torch/nn/modules/batchnorm.py:845 and torch/nn/parallel/distributed.py:2456), so no backend can make
it work. A converted model still evaluates. For training on CPUs the same statistics can be
computed by one differentiable all-reduce.
"""

import pytest
import torch
import torch.distributed as dist
from support.debug_levels import assert_close, assert_equal, data, seeded
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel as DDP


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1))


def check_converted(rank: int, size: int) -> None:
    plain = seeded(convolution)
    plain(data(9, 4, 3, 5, 5))  # running statistics that are not the initial ones
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(seeded(convolution))
    assert isinstance(converted[1], nn.SyncBatchNorm)
    converted.load_state_dict(plain.state_dict())
    x = data(rank, 4, 3, 5, 5)
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on GPU"):
        converted(x)
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        DDP(converted)
    y = torch.full((3,), rank + 1.0)
    dist.all_reduce(y)
    assert_equal(y, torch.full((3,), size * (size + 1) / 2), "the group afterwards")

    converted.load_state_dict(plain.state_dict())  # the refused call has counted a batch
    plain.eval()
    converted.eval()
    assert_close(converted(x), plain(x), "evaluation")
    for sync, alone in zip(converted.buffers(), plain.buffers(), strict=True):
        assert_close(sync, alone, "running statistics")


def test_converted(on_ranks):
    on_ranks(check_converted)


class BatchNormOverRanks(nn.BatchNorm2d):
    """Statistics of all ranks' batches, which may differ in length."""

    def forward(self, x):
        axes = (0, 2, 3)
        count = x.new_full((1,), x.numel() // x.size(1))
        sums = torch.cat([x.sum(axes), x.square().sum(axes), count])
        sums = all_reduce(sums, "sum", dist.group.WORLD)
        mean, square = (sums[:-1] / sums[-1]).chunk(2)
        shape = (1, -1, 1, 1)
        normal = (x - mean.view(shape)) * (square - mean.square() + self.eps).rsqrt().view(shape)
        return normal * self.weight.view(shape) + self.bias.view(shape)


def synchronized() -> nn.Module:
    net = convolution()
    norm = BatchNormOverRanks(6)
    norm.load_state_dict(net[1].state_dict())
    net[1] = norm
    return net


def check_way_out(rank: int, size: int) -> None:
    batches = [data(r, 2 + r, 3, 5, 5) for r in range(size)]
    expected = seeded(convolution)
    whole = expected(torch.cat(batches))
    (whole.square().sum() / size).backward()  # DDP divides the sum of gradients
    net = seeded(synchronized)
    model = DDP(net)
    output = model(batches[rank])
    assert_close(output, whole.split([len(b) for b in batches])[rank], "output")
    output.square().sum().backward()
    for (name, p), q in zip(net.named_parameters(), expected.parameters(), strict=True):
        assert_close(p.grad, q.grad, f"gradient of {name}")


def test_replacement(on_ranks):
    """One batch norm over all ranks' data equals one process with all of it."""
    on_ranks(check_way_out)
