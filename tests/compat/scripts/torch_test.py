"""Says hello from every rank of a job that mpirun or srun has started; batch.sh submits it.

A program of one's own takes the place of run(). The rest may stay as it is.
"""

import os
import socket
import sys

import torch.distributed as dist
import torch_ccl

# The variables in which each launcher says rank and size, those of an MPI first: under Slurm an MPI
# has Slurm start its helpers, whose places are not those of the ranks.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)


def run() -> None:
    """Here a model would be wrapped in DistributedDataParallel and trained on this rank's data."""
    place = f"{socket.gethostname()}: rank {dist.get_rank()} of {dist.get_world_size()}"
    sys.stdout.write(place + "\n")  # in one piece, so that ranks do not mix theirs
    sys.stdout.flush()


def get_dist_env() -> tuple[int, int]:
    """Rank and size, from whoever started this process."""
    for rank, size in LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    sys.exit("nobody says which rank this is: start it with mpirun or srun")


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
