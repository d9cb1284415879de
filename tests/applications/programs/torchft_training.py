"""A training with torchft's Manager and lighthouse, whose replicas are killed and started again.

Checks that every replica ends with the weights of a training without a group, and prints a report.
"""

import argparse
import dataclasses
import json
import sys
from itertools import cycle, islice
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.resumable_training import check_trained
from support.torchft_job import Job

KILLS = ("kill", "kill after all_reduce")
STEPS_PER_KILL = 10  # few are needed; a new replica may need some more to join


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["ccl", "gloo"], default="ccl")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--steps", type=int, help="by default as many as the kills need")
    parser.add_argument("--asynchronous-quorum", action="store_true")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    steps = arguments.steps or 10 + STEPS_PER_KILL * arguments.kills
    options = {
        "backend": arguments.backend,
        "asynchronous_quorum": arguments.asynchronous_quorum,
        "steps": steps,
    }
    recoveries = []
    with Job(arguments.replicas, **options) as job:
        job.start_all()
        for fault in islice(cycle(KILLS), arguments.kills):
            recoveries.append(job.fault(fault))
            job.rejoin()
        trainings = job.finish()
    for training in trainings:
        check_trained(training, steps)
    report = {
        "program": "torchft",
        "steps": steps,
        "losses": [training.loss for training in trainings],
        "recoveries": [dataclasses.asdict(recovery) for recovery in recoveries],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
