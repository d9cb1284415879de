"""Trains a small model on two ranks with DistributedDataParallel over ccl and proves it worked.

Each rank draws its own data and starts from its own weights. At the end the weights of both ranks
must be equal bit by bit, and equal, up to rounding, to those of one process trained on the joined
batches. With --without-allreduce the ranks do not exchange gradients, and the same check fails.

    python examples/demo.py
"""

import argparse
import hashlib
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_ccl  # noqa: F401  (registers "ccl")
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
STEPS = 200
BATCH = 64  # per rank
FEATURES = 16
LEARNING_RATE = 0.02
TOLERANCE = 1e-5
PATIENCE_S = 60  # a rank that says nothing for so long is given up


# ---- what is trained, the same for the ranks and for the single process


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )


def make_batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Synthetic data that no other rank and no other step sees."""
    generator = torch.Generator().manual_seed(1 + rank + RANKS * step)
    x = torch.randn(BATCH, FEATURES, generator=generator)
    y = torch.tanh(x[:, :4].sum(dim=1, keepdim=True))
    return x, y


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch) -> torch.Tensor:
    x, y = batch
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def sha256(weights: torch.Tensor) -> str:
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


# ---- one rank


def keep_gradients(_state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A DDP communication hook that does not communicate."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def run_rank(rank: int, store: str, without_allreduce: bool, parent) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "ccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    ddp = DistributedDataParallel(make_model(seed=rank))  # broadcasts the weights of rank 0
    if without_allreduce:
        ddp.register_comm_hook(None, keep_gradients)
    optimizer = make_optimizer(ddp)
    for step in range(STEPS):
        loss = train_step(ddp, optimizer, make_batch(rank, step))
        if step % 5 == 4 or step == 0:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
            if rank == 0:
                parent.send(("loss", step + 1, loss.item()))

    weights = weights_of(ddp)
    bits = weights.view(torch.int32)
    everyones = [torch.empty_like(bits) for _ in range(RANKS)]
    dist.all_gather(everyones, bits)
    differing = int((everyones[0] != everyones[1]).sum())
    parent.send(("done", differing, sha256(weights), weights.tolist()))
    parent.close()
    dist.destroy_process_group()


# ---- the process that starts the ranks and checks what they did


class RankFailed(Exception):
    pass


def receive(rank: int, connection):
    if not connection.poll(PATIENCE_S):
        raise RankFailed(f"rank {rank} has not been heard of for {PATIENCE_S} s")
    try:
        return connection.recv()
    except EOFError:
        raise RankFailed(f"rank {rank} ended early; its message is above") from None


def show_progress(step: int, loss: float) -> None:
    width = 40
    filled = width * step // STEPS
    bar = "#" * filled + "." * (width - filled)
    line = f"  step {step:3}/{STEPS}  [{bar}]  loss {loss:.4f}"
    if sys.stdout.isatty():
        print("\r" + line, end="\n" if step == STEPS else "", flush=True)
    elif step == 1 or step % (STEPS // 5) == 0:
        print(line, flush=True)


def train_ranks(without_allreduce: bool):
    """Returns the mean losses, and for each rank (values that differ, SHA-256, weights)."""
    context = mp.get_context("spawn")
    losses, results = [], []
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        processes, connections = [], []
        for rank in range(RANKS):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=run_rank, args=(rank, store, without_allreduce, theirs), daemon=True
            )
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(mine)
        for rank, connection in enumerate(connections):
            kind, *rest = receive(rank, connection)
            while kind == "loss":
                step, loss = rest
                losses.append(loss)
                show_progress(step, loss)
                kind, *rest = receive(rank, connection)
            differing, digest, values = rest
            results.append((differing, digest, torch.tensor(values)))
        for rank, process in enumerate(processes):
            process.join(PATIENCE_S)
            if process.exitcode != 0:
                raise RankFailed(f"rank {rank} ended with exit code {process.exitcode}")
    return losses, results


def train_alone() -> torch.Tensor:
    """The same training in this process, on the batches of all ranks joined together."""
    model = make_model(seed=0)
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        batches = [make_batch(rank, step) for rank in range(RANKS)]
        joined = [torch.cat(parts) for parts in zip(*batches, strict=True)]
        train_step(model, optimizer, joined)
    return weights_of(model)


def check(losses, results) -> list[tuple[str, str, bool]]:
    """One row per check: what, what was found, whether it holds."""
    counts, digests, weights = zip(*results, strict=True)
    differing = max(counts)
    alone = train_alone()
    distance = max(float((values - alone).abs().max()) for values in weights)
    return [
        ("loss fell", f"{losses[0]:.4f} -> {losses[-1]:.4f}", losses[-1] < losses[0] / 4),
        (
            "weights of both ranks, bit by bit (all_gather over ccl)",
            f"{differing} of {len(weights[0])} differ",
            differing == 0,
        ),
        (
            "the same by SHA-256, compared without ccl",
            f"{digests[0][:8]} / {digests[1][:8]}",
            digests[0] == digests[1],
        ),
        (
            "distance to one process trained on the joined batches",
            f"{distance:.1e} (limit {TOLERANCE:.0e})",
            distance <= TOLERANCE,
        ),
    ]


def print_table(rows) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    print()
    for what, found, holds in rows:
        print(f"  {what:{widths[0]}}  {found:{widths[1]}}  {'ok' if holds else 'FAILED'}")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--without-allreduce",
        action="store_true",
        help="do not exchange gradients: shows that the check at the end can fail",
    )
    options = parser.parse_args()

    print(f"Training on {RANKS} ranks with DistributedDataParallel over ccl\n", flush=True)
    start = time.monotonic()
    try:
        losses, results = train_ranks(options.without_allreduce)
    except RankFailed as failure:
        print(f"\nFAILED: {failure}")
        return 1
    rows = check(losses, results)
    print_table(rows)
    failed = [what for what, _, holds in rows if not holds]
    if failed:
        print(f"FAILED: {'; '.join(failed)}")
        return 1
    print(f"All checks hold. {time.monotonic() - start:.1f} s in all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
