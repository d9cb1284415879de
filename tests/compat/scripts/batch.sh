#!/bin/bash
#SBATCH --job-name=torch_test
#SBATCH -o torch_test.out
#SBATCH -N 2
#SBATCH --tasks-per-node=2
#SBATCH --gres=gpu:volta:2

# Where programs come as modules; what they are called there differs.
if command -v module >/dev/null; then
  module load anaconda
  module load mpi
fi

# This script runs on the job's first host, as rank 0 will.
MASTER_ADDR=$(hostname)
MASTER_PORT=$(python -c 'import socket; s = socket.create_server(("", 0)); print(s.getsockname()[1])')
OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS

# Open MPI hands on to other hosts what it is told to; MPICH and Intel MPI hand on everything.
MPI_FLAGS=
if mpirun --version | grep -q "Open MPI"; then
  MPI_FLAGS="-x MASTER_ADDR -x MASTER_PORT -x OMP_NUM_THREADS"
fi

mpirun ${MPI_FLAGS} python torch_test.py
