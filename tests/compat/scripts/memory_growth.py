"""Trains a model of 4 inputs and 5 outputs for a while and prints by how much memory has grown."""

import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

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


def show(model: torch.nn.Module) -> None:
    train(model, WARM_UP)
    before = resident_kib()
    train(model, STEPS)
    grown = resident_kib() - before
    place = f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}"
    # At once: with `python -u`, labels of -l stand before each piece.
    sys.stdout.write(f"{place} has grown by {grown} KiB\n")
