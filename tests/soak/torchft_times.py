#!/usr/bin/env python3
"""Measures how soon torchft's replicas go on over ccl: from a fault to the next committed step.

make build; tools/setup.sh applications             sets up .venv/applications, which has torchft
.venv/applications/bin/python tests/soak/torchft_times.py
.venv/applications/bin/python tests/soak/torchft_times.py --backend gloo --replicas 2

A replica of a training meets a fault, and the others take the step without it. Milliseconds since
the fault, for the slowest survivor: median over the repetitions, and the longest. "error": its
all_reduce has failed; "committed": its next step is committed. "configure": how long the call that
makes the new group took. Most of the time is the lighthouse's: it forms a new quorum when the lost
replica has sent no heartbeat for --heartbeat-ms.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.resumable_training import check_trained
from support.torchft_job import FAULTS, Job, Recovery, versions

STEPS_PER_FAULT = 20
COLUMNS = {"error": "failed_ms", "configure": "configure_ms", "committed": "committed_ms"}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["ccl", "gloo"], default="ccl")
    parser.add_argument("--replicas", type=int, nargs="*", default=[2, 3, 4])
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--heartbeat-ms", type=int, default=1000)
    parser.add_argument("--timeout-s", type=float, default=5, help="of the process group")
    return parser.parse_args()


def recoveries(replicas: int, fault: str, arguments) -> list[Recovery]:
    steps = 10 + STEPS_PER_FAULT * arguments.repetitions
    options = {
        "steps": steps,
        "backend": arguments.backend,
        "heartbeat_ms": arguments.heartbeat_ms,
        "timeout_s": arguments.timeout_s,
    }
    found = []
    with Job(replicas, bound_s=60 * (1 + arguments.repetitions), **options) as job:
        job.start_all()
        if fault == "kill in configure":
            job.fault("kill")
        for _ in range(arguments.repetitions):
            if fault == "kill in configure":
                found.append(job.fault_in_configure())
            else:
                found.append(job.fault(fault))
                job.rejoin()
        for training in job.finish():
            check_trained(training, steps)
    return found


def cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.0f} / {max(known):.0f}" if known else "none"


def main() -> None:
    arguments = parse_arguments()
    limits = f"heartbeat {arguments.heartbeat_ms} ms, timeout {arguments.timeout_s} s"
    print(f"{versions()}, {arguments.backend}, {arguments.repetitions} faults per row, {limits}\n")
    print(f"| replicas | fault | {' | '.join(f'{name}, ms' for name in COLUMNS)} |")
    print("|" + "---|" * (2 + len(COLUMNS)))
    for replicas in arguments.replicas:
        for fault in arguments.faults:
            found = recoveries(replicas, fault, arguments)
            cells = [cell([getattr(each, name) for each in found]) for name in COLUMNS.values()]
            print(f"| {replicas} | {FAULTS[fault]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
