"""Trains a small convolutional net; weights and gradients are exchanged by hand, without DDP."""

import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_ccl  # noqa: F401
from torch import nn

STEPS = 4


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolve = nn.Conv2d(1, 4, kernel_size=3)
        self.decide = nn.Linear(4 * 6 * 6, 10)

    def forward(self, images):
        seen = F.relu(self.convolve(images)).flatten(1)
        return F.log_softmax(self.decide(seen), dim=1)


def share_initial_weights(model: nn.Module, rank: int, size: int) -> None:
    for weights in model.parameters():
        if rank == 0:
            for other in range(1, size):
                dist.send(weights.data, dst=other)
        else:
            dist.recv(weights.data, src=0)


def add_up_gradients(model: nn.Module) -> None:
    for weights in model.parameters():
        dist.all_reduce(weights.grad.data, op=dist.reduce_op.SUM)  # the old name


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.85)
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.nll_loss(model(torch.randn(8, 1, 8, 8)), torch.randint(10, (8,)))
        loss.backward()
        add_up_gradients(model)
        optimizer.step()


def checksum(model: nn.Module) -> float:
    return sum(weights.double().abs().sum().item() for weights in model.parameters())


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)  # torch deprecates the old name
    dist.init_process_group(backend="ccl")
    torch.manual_seed(dist.get_rank())  # so that weights and data differ
    model = Digits()
    share_initial_weights(model, dist.get_rank(), dist.get_world_size())
    print(f"before {checksum(model)!r}")
    train(model)
    print(f"after {checksum(model)!r}")
