"""Programs made of the pieces of documents that show no whole ones.

What the pieces leave open (a model, data, arguments) is written here; what they say stays as it is,
but for the rows of documents.EDITS.
"""

import textwrap
from pathlib import Path

from documents import SPAWN, Source, blocks_of, edited, find

DOCUMENT = "003"

TRAINING_START = """\
import warnings
import torch, torch_ccl
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim

warnings.simplefilter("ignore", FutureWarning)  # torch's word on dist.reduce_op
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


def training(directory: Path) -> str:
    """The loop that exchanges weights and gradients. Its functions stand below their use."""
    source = Source(DOCUMENT, ("def sync_gradients",))
    text = find(source, blocks_of(DOCUMENT, directory)).text
    loop, mark, functions = text.partition("def sync_initial_weights")
    assert mark, "the document's functions have other names"
    return TRAINING_START + mark + functions + "\n\n" + loop + TRAINING_END


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


def spawning(directory: Path) -> str:
    """The main loop, the function that it starts, and what that does with data and checkpoints."""
    found = blocks_of(DOCUMENT, directory)

    def piece(*words: str, depth: int) -> str:
        return textwrap.indent(find(Source(DOCUMENT, words), found).text, "    " * depth)

    text = "".join(
        (
            SPAWN_START,
            piece('backend="nccl"', depth=1),
            piece("DistributedSampler(", depth=1),
            SPAWN_LOOP,
            piece("set_epoch(", depth=2),
            SPAWN_STEP,
            piece("torch.save(", depth=2),
            SPAWN_MAIN,
            piece("mp.spawn(", depth=1),
        )
    )
    return edited(SPAWN, text)


SCALING_DOCUMENT = "002"
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


def scaling(name: str, directory: Path) -> str:
    """The API that trains on all tiles of a card. Its loop is only hinted at, so it is ours."""
    found = blocks_of(SCALING_DOCUMENT, directory)

    def piece(*words: str, depth: int) -> str:
        text = find(Source(SCALING_DOCUMENT, words), found).text
        return textwrap.indent(text, "    " * depth)

    text = "".join(
        (
            SCALING_START,
            piece("import single_card_dist", depth=0),
            SCALING_WORKER,
            piece("= single_card_dist(model", depth=1),
            piece("xpu = ", depth=1),
            piece("DataLoader(", depth=1),
            SCALING_LOOP,
            piece("multi_process_spawn(", depth=2),
            SCALING_END,
        )
    )
    return edited(name, text)
