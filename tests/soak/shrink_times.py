#!/usr/bin/env python3
"""Measures how soon survivors go on: from a rank's death to the first all_reduce without it.

tests/soak/shrink_times.py                          2 to 8 ranks on this host
tests/soak/shrink_times.py --hosts                  2 x 2 ranks on virtual hosts (needs root)
tests/soak/shrink_times.py --ranks 4 --repetitions 20

A rank is killed while all ranks call all_reduce in a loop. Every survivor calls
dist.shrink_group([rank], shrink_flags=SHRINK_ABORT) as soon as its all_reduce fails. The table has
milliseconds since the kill, for the slowest survivor: median over the repetitions, and the
longest. "error": all_reduce has failed; "shrunk": shrink_group() has returned; "goes on": the first
all_reduce of the shrunk group is complete.
"""

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.function_ranks import started_on_hosts
from support.launchers import free_port
from support.ranks import started_ranks
from support.virtual_hosts import virtual_hosts

STAGES = ("error", "shrunk", "goes on")
#: Which rank is killed, by the name of the row. Rank 0 also serves the store.
VICTIMS = {"rank 0": lambda size: 0, "the last rank": lambda size: size - 1}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4, 6, 8])
    parser.add_argument("--hosts", action="store_true", help="2 x 2 ranks on virtual hosts")
    parser.add_argument("--repetitions", type=int, default=10)
    return parser.parse_args()


def go_on(rank: int, size: int, victim: int, killed_at: str) -> list[float]:
    """The times of this rank's stages; the victim writes the time of its death to a file."""
    x = torch.ones(1000)
    dist.all_reduce(x)
    dist.barrier()
    if rank == victim:
        threading.Timer(0.1, kill_self, [killed_at]).start()
    times = []
    try:
        while True:
            dist.all_reduce(x.fill_(1))
    except dist.DistBackendError:
        times.append(time.monotonic())
    group = dist.shrink_group([victim], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    times.append(time.monotonic())
    dist.all_reduce(x.fill_(1), group=group)
    times.append(time.monotonic())
    assert x.eq(size - 1).all()
    return times


def kill_self(killed_at: str) -> None:
    Path(killed_at).write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def measure(start, size: int, victim: int, scratch: Path) -> list[float]:
    """Milliseconds from the kill to each stage of the slowest survivor."""
    killed_at = scratch / "killed_at"
    with start(go_on, victim, str(killed_at)) as ranks:
        pass
    survivors = [rank for number, rank in enumerate(ranks) if number != victim]
    if failures := [rank.failure for rank in survivors if rank.failure]:
        sys.exit("\n".join(failures))
    killed = float(killed_at.read_text())
    return [1000 * (max(rank.value[i] for rank in survivors) - killed) for i in range(len(STAGES))]


def print_row(layout: str, victim: str, runs: list[list[float]]) -> None:
    stages = zip(*runs, strict=True)
    cells = [f"{statistics.median(times):.1f} / {max(times):.1f}" for times in stages]
    print(f"| {layout} | {victim} | " + " | ".join(cells) + " |", flush=True)


def starters(arguments, stack: contextlib.ExitStack):
    """For each layout its name, its size, and what starts its ranks."""
    if arguments.hosts:
        hosts = stack.enter_context(virtual_hosts(2))
        yield (
            "2 x 2 hosts",
            4,
            lambda function, *args: started_on_hosts(hosts, [2, 2], function, *args),
        )
        return
    for size in arguments.ranks:

        def start(function, *args, size=size):
            group = {"init_method": f"tcp://127.0.0.1:{free_port()}"}
            return started_ranks(size, function, *args, group=group)

        yield f"{size}", size, start


def main() -> None:
    arguments = parse_arguments()
    print(f"| ranks | killed | {' | '.join(f'{stage}, ms' for stage in STAGES)} |")
    print("|" + "---|" * (2 + len(STAGES)))
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:
        for layout, size, start in starters(arguments, stack):
            for name, victim_of in VICTIMS.items():
                runs = [
                    measure(start, size, victim_of(size), Path(scratch))
                    for _ in range(arguments.repetitions)
                ]
                print_row(layout, name, runs)


if __name__ == "__main__":
    main()
