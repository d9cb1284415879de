"""One rank sends a tensor, the other receives it; both print it."""

import torch
import torch.distributed as dist
import torch_ccl  # noqa: F401


def main(rank: int, world: int) -> None:
    assert world == 2
    if rank == 0:
        x = torch.tensor([3.0, -4.5])
        dist.send(x, dst=1)
    else:
        x = torch.zeros(2)
        dist.recv(x, src=0)
    print(f"rank {rank} has {x.tolist()}")


if __name__ == "__main__":
    dist.init_process_group(backend="ccl")
    main(dist.get_rank(), dist.get_world_size())
