"""Trains a model of 4 inputs and 5 outputs and returns the growth of resident memory."""

from pathlib import Path

import torch

WARM_UP = 2000  # steps before the first measurement: DDP records times at first
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
