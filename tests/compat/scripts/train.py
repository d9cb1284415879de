"""Trains a model of its own class on different data per rank, and prints losses and weights.

train.py [device type]    on the CPU, or rank r on device r
"""

import os
import sys

import oneccl_bindings_for_pytorch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(2, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.hidden(x).tanh())


def train(net: nn.Module, steps: int, device: str) -> list[float]:
    loss_of = nn.MSELoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 2).to(device)
        optimizer.zero_grad()
        loss = loss_of(net(x), x.prod(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    dist.init_process_group(backend="ccl")
    assert os.environ["PMI_RANK"] == str(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    device = f"{sys.argv[1]}:{dist.get_rank()}" if sys.argv[1:] else "cpu"
    net = Curve().to(device)
    if dist.get_world_size() > 1:
        net = DistributedDataParallel(net, device_ids=[device] if sys.argv[1:] else None)
    losses = train(net, 3, device)
    print("losses", losses)
    print("weights", [p.flatten().tolist() for p in net.parameters()])


if __name__ == "__main__":
    main()
