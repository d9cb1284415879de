"""Programs assembled from code fragments of documents that show no complete program.

The parts that the fragments omit (a model, data, arguments) are here. documents.CHANGES says where
each of these texts is inserted, and why.
"""

from typing import NamedTuple


class Piece(NamedTuple):
    words: str  # what only this block of the document contains
    depth: int  # of indentation


TRAINING_START = """\
import warnings
import torch, torch_ccl
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim

warnings.simplefilter("ignore", FutureWarning)  # torch deprecates dist.reduce_op
dist.init_process_group("ccl")
rank, world_size, epochs = dist.get_rank(), dist.get_world_size(), 2
torch.manual_seed(rank)  # so that weights and data differ
train_loader = [(torch.randn(4, 12), torch.randint(3, (4,))) for _ in range(3)]


def LeNet():
    return nn.Sequential(nn.Linear(12, 3), nn.LogSoftmax(dim=1))


"""
TRAINING_END = """
print(f"weights {[p.flatten().tolist() for p in model.parameters()]}")
"""

#: The function that mp.spawn starts, its data and checkpoints, the main program.
SPAWN_PIECES = (
    Piece('backend="nccl"', 1),
    Piece("DistributedSampler(", 1),
    Piece("set_epoch(", 2),
    Piece("torch.save(", 2),
    Piece("mp.spawn(", 1),
)
SPAWN_START = """\
import sys
from argparse import Namespace
import torch, torch_ccl

ngpus_per_node = 2
train_dataset = torch.arange(16.0).reshape(16, 1)


def main_worker(gpu, ngpus_per_node, args):
    args.rank = gpu
    model = torch.nn.Linear(1, 1)
"""
SPAWN_LOOP = """
    for epoch in range(2):
"""
SPAWN_STEP = """
        samples = sum((x.flatten().tolist() for x in train_loader), [])
        model(torch.ones(1, 1)).sum().backward()
        print(f"rank {args.rank} epoch {epoch}: {samples}")
"""
SPAWN_MAIN = """

if __name__ == "__main__":
    args = Namespace(dist_url=sys.argv[1], file=sys.argv[2], world_size=1)
    args.batch_size, args.workers, args.distributed = 2, 1, True
"""

#: The API that trains on all tiles of a card.
SCALING_PIECES = (
    Piece("import single_card_dist", 0),
    Piece("= single_card_dist(model", 1),
    Piece("xpu = ", 1),
    Piece("DataLoader(", 1),
    Piece("multi_process_spawn(", 2),
)
SCALING_START = """\
import sys
import types
import torch

train_dataset = torch.arange(16.0).reshape(16, 1)


"""
SCALING_WORKER = """

def main_worker(args):
    model = torch.nn.Linear(1, 1)
"""
SCALING_LOOP = """
    for epoch in range(2):
        train_sampler.set_epoch(epoch)
        samples = []
        for x in train_loader:
            samples += x.flatten().tolist()
            model(x.to(xpu)).sum().backward()
        print(f"rank {local_rank} epoch {epoch}: {samples}")
    print(f"gradients {[p.grad.flatten().tolist() for p in model.parameters()]}")


if __name__ == "__main__":
    args = types.SimpleNamespace(batch_size=2, workers=1)
    code = (
"""
SCALING_END = """
    )
    sys.exit(code)
"""
