"""Trains a model of 4 inputs and 5 outputs for a while and says by how much memory has grown."""

from pathlib import Path

import torch

WARM_UP = 2000  # steps in which all that is kept may come to be: DDP notes times for a while
STEPS = 1000


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS"))


def train(model: torch.nn.Module, steps: int) -> None:
    loss_of = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model(torch.randn(2, 4)), torch.randn(2, 5)).backward()
        optimizer.step()


def grown_kib(model: torch.nn.Module) -> int:
    train(model, WARM_UP)
    before = resident_kib()
    train(model, STEPS)
    return resident_kib() - before
