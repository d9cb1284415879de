"""A training that torchrun may restart, with any number of ranks: the script of test_elastic.py.

elastic_training.py <directory> --steps 20 --faults kill@5,raise@9

Rank 0 saves a checkpoint after each step, from which the ranks continue when torchrun has started
them again. In the n-th start the last rank meets the n-th fault before its all_reduce of that step.
<directory>/limit, if it exists, has the number of steps that the ranks may take now. Every rank
appends a line to <directory>/progress when it has the group and its checkpoint, and one after each
step.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.resumable_training import Training

LIMIT_POLL_S = 0.02


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--faults", default="")
    return parser.parse_args()


def fault_of_this_start(faults: str) -> tuple[str, int]:
    """Its name and its step; ("", -1) if no fault is left."""
    names = faults.split(",") if faults else []
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    name, _, step = names[start].partition("@") if start < len(names) else ("", "", "-1")
    return name, int(step)


def inject(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "raise":
        raise RuntimeError("the fault of the test")
    raise ValueError(fault)


def wait_for_permission(limit: Path, step: int) -> None:
    while limit.exists() and step >= int(limit.read_text() or 0):
        time.sleep(LIMIT_POLL_S)


def report(progress: TextIO, step: int) -> None:
    line = {"step": step, "rank": dist.get_rank(), "size": dist.get_world_size()}
    progress.write(json.dumps({**line, "pid": os.getpid()}) + "\n")


def main() -> None:
    arguments = parse_arguments()
    directory = arguments.directory
    checkpoint = directory / "checkpoint"
    dist.init_process_group("ccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    fault, fault_step = fault_of_this_start(arguments.faults)
    training = Training()
    if checkpoint.exists():
        training.load(checkpoint)
    with (directory / "progress").open("a", buffering=1) as progress:
        report(progress, training.step)
        while training.step < arguments.steps:
            wait_for_permission(directory / "limit", training.step)
            gradients = training.gradients(rank, size)
            if training.step == fault_step:
                dist.barrier()  # rank 0 has saved and reported the steps before
                if rank == size - 1:
                    inject(fault)
            for each in gradients:
                dist.all_reduce(each, dist.ReduceOp.AVG)
            training.apply(gradients)
            if rank == 0:
                training.save(checkpoint)
            report(progress, training.step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
