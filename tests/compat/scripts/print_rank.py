"""Takes rank and size from MPI's variables, sets MASTER_ADDR and MASTER_PORT, prints its rank."""

import os
import sys

import torch
import torch.distributed as dist
import torch_ccl  # noqa: F401
from torch.nn.parallel import DistributedDataParallel

os.environ.update(
    RANK=os.environ["PMI_RANK"],
    WORLD_SIZE=os.environ["PMI_SIZE"],
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT=sys.argv[1],
)
dist.init_process_group("ccl")
print(f"{dist.get_rank()} of {dist.get_world_size()}, locally {os.environ['LOCAL_RANK']}")

net = DistributedDataParallel(torch.nn.Linear(3, 2))
net(torch.full((1, 3), float(dist.get_rank()))).sum().backward()
print(net.module.weight.grad.tolist())
