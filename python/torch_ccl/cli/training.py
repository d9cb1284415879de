"""A training step of a model whose gradients take longer to add up than to compute."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_ccl.cli.processes import Place

WARM_UP = 2


@dataclass(frozen=True)
class Task:
    """25 million parameters with the defaults; `batch` is that of all ranks together."""

    width: int = 512
    layers: int = 12
    batch: int = 8
    steps: int = 10
    #: without them the losses are wrong, which the check must notice
    with_reductions: bool = True


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(x)


class Trainer:
    """One rank: with a backend it has its part of the batch and a DDP, without one all of it."""

    def __init__(self, place: Place, task: Task, backend: str | None):
        torch.manual_seed(0)
        self._task = task
        layers = (Residual(task.width) for _ in range(task.layers))
        self._model = self._plain = nn.Sequential(*layers)
        inputs, targets = torch.randn(2, task.batch, task.width)
        if backend:
            place.join(backend)
            inputs = inputs.chunk(place.size)[place.rank]
            targets = targets.chunk(place.size)[place.rank]
            if task.with_reductions:
                self._model = DistributedDataParallel(self._plain)
        self._inputs, self._targets = inputs, targets
        self._start = [p.detach().clone() for p in self._plain.parameters()]
        self._optimizer = torch.optim.SGD(self._plain.parameters(), lr=0.05)

    def _step(self) -> float:
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(self._inputs), self._targets)
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def __call__(self, threads: int) -> tuple[float, list[float]]:
        """Trains from the start; seconds for a step, and the loss before each."""
        torch.set_num_threads(threads)
        with torch.no_grad():
            for parameter, start in zip(self._plain.parameters(), self._start, strict=True):
                parameter.copy_(start)
        losses = [self._step() for _ in range(WARM_UP)]
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        losses += [self._step() for _ in range(self._task.steps)]
        return (time.perf_counter() - begin) / self._task.steps, losses
