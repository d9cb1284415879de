"""Trains over epochs with a DistributedSampler and a DataLoader, and saves checkpoints.

    epochs.py DIRECTORY --dist-url env://                   started by any launcher
    epochs.py DIRECTORY --dist-url tcp://... --spawn 2      starts its ranks itself

Every rank prints its samples of each epoch, and its weights at the end.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_ccl
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SAMPLES = 24
EPOCHS = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dist-url", default="env://")
    parser.add_argument("--spawn", type=int, default=0)
    return parser.parse_args()


def train(net: torch.nn.Module, loader: DataLoader) -> list[int]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    seen = []
    for numbers, x in loader:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        seen += numbers.tolist()
    return seen


def main_worker(local_rank: int, args: argparse.Namespace, rank: int, size: int) -> None:
    if args.dist_url == "env://":
        dist.init_process_group(backend="ccl", init_method=args.dist_url)
    else:
        dist.init_process_group(
            backend="ccl", init_method=args.dist_url, world_size=size, rank=rank + local_rank
        )
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 3))
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, batch_size=4, shuffle=(sampler is None), num_workers=1, sampler=sampler
    )
    net = DistributedDataParallel(torch.nn.Linear(3, 1))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        print(f"rank {dist.get_rank()} epoch {epoch}: {train(net, loader)}")
        if dist.get_rank() == 0:
            torch.save(net.module.state_dict(), args.directory / f"epoch{epoch}.pt")
    weights = [p.flatten().tolist() for p in net.parameters()]
    print(f"rank {dist.get_rank()} weights: {weights}")
    dist.destroy_process_group()


def main() -> None:
    args = arguments()
    if args.spawn:
        mp.spawn(main_worker, nprocs=args.spawn, args=(args, 0, args.spawn))
    else:
        env = torch_ccl.get_dist_env()
        main_worker(0, args, env.rank, env.world_size)


if __name__ == "__main__":
    main()
