"""A training step: with DDP, with FSDP2, or in one process."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_ccl.cli.bench.ranks import BenchProcess

WARM_UP = 2


@dataclass(frozen=True)
class Task:
    """`batch` is that of all ranks together."""

    name: str
    parallelism: str  # "ddp" or "fsdp2"
    layers: int
    width: int
    expansion: int  # width of the hidden layer of each block, divided by `width`
    batch: int = 8
    steps: int = 10
    #: False gives wrong losses, for the test of the check
    with_reductions: bool = True


class Block(nn.Module):
    def __init__(self, width: int, expansion: int):
        super().__init__()
        hidden = expansion * width
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.mlp(x))


def parallelize(model: nn.Sequential, parallelism: str) -> nn.Module:
    """FSDP2 shards the model in place: each block, and the whole."""
    if parallelism == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class TrainHandler:
    """Trains one rank on its shard of the batch; without a backend, one process on all of it."""

    def __init__(self, process: BenchProcess, task: Task, backend: str | None):
        torch.manual_seed(0)
        self._steps = task.steps
        blocks = (Block(task.width, task.expansion) for _ in range(task.layers))
        model = nn.Sequential(*blocks)
        self._model: nn.Module = model
        inputs, targets = torch.randn(2, task.batch, task.width)
        if backend:
            process.init_process_group(backend)
            inputs = inputs.chunk(process.size)[process.rank]
            targets = targets.chunk(process.size)[process.rank]
            if task.with_reductions:
                self._model = parallelize(model, task.parallelism)
        self._inputs, self._targets = inputs, targets
        self._initial = [p.detach().clone() for p in self._model.parameters()]
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05)

    def _step(self) -> float:
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(self._inputs), self._targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()

    def __call__(self, threads: int) -> tuple[float, list[float]]:
        """Trains from the initial weights; seconds per step, and the loss of each step."""
        torch.set_num_threads(threads)
        with torch.no_grad():
            for parameter, initial in zip(self._model.parameters(), self._initial, strict=True):
                parameter.copy_(initial)
        losses = [self._step() for _ in range(WARM_UP)]
        if dist.is_initialized():
            dist.barrier()
        start = time.perf_counter()
        losses += [self._step() for _ in range(self._steps)]
        return (time.perf_counter() - start) / self._steps, losses
