"""Trains a small model on two ranks with DistributedDataParallel over ccl and checks the result.

Each rank has its own data and its own initial weights. After the training the weights of both ranks
must be bitwise equal, and equal up to rounding to those of one process trained on the batches of
both. With --without-allreduce the ranks do not exchange gradients, and the checks fail.

    python examples/demo.py
"""

import argparse
import hashlib
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_ccl  # noqa: F401  (registers "ccl")
from rich.progress import BarColumn, Progress, TextColumn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
STEPS = 200
BATCH = 64  # per rank
FEATURES = 16
LEARNING_RATE = 0.02
TOLERANCE = 1e-5
TIMEOUT_S = 60  # a rank that sends no message for this long has failed


# ---- model and data, the same for the ranks and for the single process


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )


def make_batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Synthetic data, different on every rank and in every step."""
    generator = torch.Generator().manual_seed(1 + rank + RANKS * step)
    x = torch.randn(BATCH, FEATURES, generator=generator)
    y = torch.tanh(x[:, :4].sum(dim=1, keepdim=True))
    return x, y


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def sha256(weights: torch.Tensor) -> str:
    return hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()


# ---- one rank


def keep_local_gradients(
    _state: None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A DDP communication hook that does not communicate."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def run_rank(rank: int, store: str, without_allreduce: bool, parent: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "ccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    ddp = DistributedDataParallel(make_model(seed=rank))  # broadcasts the weights of rank 0
    if without_allreduce:
        ddp.register_comm_hook(None, keep_local_gradients)
    optimizer = make_optimizer(ddp)
    for step in range(STEPS):
        loss = train_step(ddp, optimizer, *make_batch(rank, step))
        if step % 5 == 4 or step == 0:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
            if rank == 0:
                parent.send(("loss", step + 1, loss.item()))

    weights = weights_of(ddp)
    bits = weights.view(torch.int32)
    gathered = [torch.empty_like(bits) for _ in range(RANKS)]
    dist.all_gather(gathered, bits)
    differing = int((gathered[0] != gathered[1]).sum())
    parent.send(("done", differing, sha256(weights), weights.tolist()))
    parent.close()
    dist.destroy_process_group()


# ---- the parent process: starts the ranks and checks their results


class RankError(Exception):
    pass


@dataclass(frozen=True)
class RankResult:
    differing: int  # weights that differ between the ranks, counted over ccl
    sha256: str
    weights: torch.Tensor


class TrainingProgress:
    """A progress bar on a terminal, otherwise a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            TextColumn("step {task.completed}/{task.total}  {task.fields[loss]}"),
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task("starting the ranks", total=STEPS, loss="")

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def update(self, step: int, loss: float) -> None:
        text = f"loss {loss:.4f}"
        self._bar.update(self._task, completed=step, description="training", loss=text)
        if not self._is_terminal and (step == 1 or step % (STEPS // 5) == 0):
            print(f"  step {step:3}/{STEPS}  {text}", flush=True)


def receive(rank: int, connection: Connection) -> tuple[Any, ...]:
    if not connection.poll(TIMEOUT_S):
        raise RankError(f"rank {rank} sent no message for {TIMEOUT_S} s")
    try:
        return tuple(connection.recv())
    except EOFError:
        raise RankError(f"rank {rank} exited early; its error is printed above") from None


def start_rank(rank: int, store: str, without_allreduce: bool) -> tuple[SpawnProcess, Connection]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=run_rank, args=(rank, store, without_allreduce, theirs), daemon=True
    )
    process.start()
    theirs.close()
    return process, ours


def collect(ranks: list[tuple[SpawnProcess, Connection]]) -> tuple[list[float], list[RankResult]]:
    """Losses of the training, and the result of each rank."""
    losses, results = [], []
    with TrainingProgress() as progress:
        for rank, (_, connection) in enumerate(ranks):
            kind, *values = receive(rank, connection)
            while kind == "loss":
                step, loss = values
                losses.append(loss)
                progress.update(step, loss)
                kind, *values = receive(rank, connection)
            differing, digest, weights = values
            results.append(RankResult(differing, digest, torch.tensor(weights)))
    return losses, results


def train_ranks(without_allreduce: bool) -> tuple[list[float], list[RankResult]]:
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        ranks = [start_rank(rank, store, without_allreduce) for rank in range(RANKS)]
        losses, results = collect(ranks)
        for rank, (process, _) in enumerate(ranks):
            process.join(TIMEOUT_S)
            if process.exitcode != 0:
                raise RankError(f"rank {rank} ended with exit code {process.exitcode}")
    return losses, results


def train_alone() -> torch.Tensor:
    """The same training in this process, on the batches of all ranks."""
    model = make_model(seed=0)
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        batches = [make_batch(rank, step) for rank in range(RANKS)]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        train_step(model, optimizer, x, y)
    return weights_of(model)


def check(losses: list[float], results: list[RankResult]) -> list[tuple[str, str, bool]]:
    """Name, value and outcome of each check."""
    differing = max(result.differing for result in results)
    alone = train_alone()
    distance = max(float((result.weights - alone).abs().max()) for result in results)
    first, second = (result.sha256 for result in results)
    return [
        ("loss decreased", f"{losses[0]:.4f} -> {losses[-1]:.4f}", losses[-1] < losses[0] / 4),
        (
            "weights of both ranks, bitwise (all_gather over ccl)",
            f"{differing} of {len(alone)} differ",
            differing == 0,
        ),
        (
            "SHA-256 of the weights, compared without ccl",
            f"{first[:8]} / {second[:8]}",
            first == second,
        ),
        (
            "distance to one process trained on the batches of both",
            f"{distance:.1e} (limit {TOLERANCE:.0e})",
            distance <= TOLERANCE,
        ),
    ]


def print_table(rows: list[tuple[str, str, bool]]) -> None:
    names, values, _ = zip(*rows, strict=True)
    widths = max(map(len, names)), max(map(len, values))
    print()
    for name, value, passed in rows:
        print(f"  {name:{widths[0]}}  {value:{widths[1]}}  {'ok' if passed else 'FAILED'}")
    print()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--without-allreduce",
        action="store_true",
        help="do not exchange gradients: shows that the checks can fail",
    )
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    print(f"Training on {RANKS} ranks with DistributedDataParallel over ccl\n", flush=True)
    start = time.monotonic()
    try:
        losses, results = train_ranks(options.without_allreduce)
    except RankError as error:
        print(f"\nFAILED: {error}")
        return 1
    rows = check(losses, results)
    print_table(rows)
    if failed := [name for name, _, passed in rows if not passed]:
        print(f"FAILED: {'; '.join(failed)}")
        return 1
    print(f"All checks passed in {time.monotonic() - start:.1f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
