"""Prints a line from every rank of a job that mpirun or srun has started; batch.sh submits it.

Replace run() by your own program and keep the rest.
"""

import os
import socket
import sys

import torch.distributed as dist
import torch_ccl

# Rank and size variables of each launcher. MPI comes first: under Slurm, MPI starts its helpers by
# srun, and their Slurm variables are not those of the ranks.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)


def run() -> None:
    """Here a model would be wrapped in DistributedDataParallel and trained on this rank's data."""
    line = f"{socket.gethostname()}: rank {dist.get_rank()} of {dist.get_world_size()}"
    sys.stdout.write(line + "\n")  # one write, so that lines of ranks do not mix
    sys.stdout.flush()


def get_dist_env() -> tuple[int, int]:
    """Rank and size, from the launcher's variables."""
    for rank, size in LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    sys.exit("no rank and size in the environment: start this with mpirun or srun")


if __name__ == "__main__":
    rank, size = get_dist_env()
    dist.init_process_group("ccl", rank=rank, world_size=size)

    run()

    dist.barrier()
    if rank == 0:
        settings = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "")}
        settings |= torch_ccl.settings()
        sys.stdout.write("".join(f"{name}={value}\n" for name, value in settings.items()))
    dist.destroy_process_group()
