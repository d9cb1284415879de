"""Random collectives and messages on random groups, many concurrently, for a given time.

    python tests/soak/soak.py --seconds 300 --seed 7
    python tests/soak/soak.py --seed 7 --round 12         one round again

A round is a new world of 2 to 8 ranks with a few groups. It is determined by the seed and the
round's number, so every rank knows the data of all ranks and the expected results, bit by bit.
Operations of one batch are started in a different order on each rank where that is allowed
(collectives of one group keep their order), and waited for in any order. A hang ends with the
stacks of all ranks and exit code 1.
"""

import argparse
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.ranks import run_ranks
from support.torch_conformance import any_combination, draw
from support.torch_exchange import Case, Exchange
from support.torch_operations import make_exchange

BATCHES = 150  # per round
GROUPS = 5  # in each round; the first is the world
POINT_TO_POINT = ("send_recv", "recv_any_source", "batch_send_recv")


@dataclass(frozen=True)
class Batch:
    """Pairs of the index of a group and a case."""

    members: dict[int, list[int]]  # groups to create first; each replaces the group of that index
    started: list[tuple[int, Case]]
    blocking: list[tuple[int, Case]]  # in the same order on all ranks


class Plan:
    """The batches of one round, the same on all ranks."""

    def __init__(self, seed: int, number: int):
        self._name = f"{seed}/{number}"
        self._rng = random.Random(self._name)
        self._count = 0
        self.size = self._rng.randint(2, 8)
        self.members = {0: list(range(self.size))}

    def batches(self) -> Iterator[Batch]:
        new = {g: self._some_ranks() for g in range(1, GROUPS)}
        for _ in range(BATCHES):
            self.members |= new
            started = [self._case(asynchronous=True) for _ in range(self._rng.randint(1, 8))]
            blocking = [self._case(asynchronous=False) for _ in range(self._rng.randint(0, 2))]
            yield Batch(new, started, blocking)
            replaced = self._rng.random() < 0.1
            new = {self._rng.randrange(1, GROUPS): self._some_ranks()} if replaced else {}

    def _some_ranks(self) -> list[int]:
        return sorted(self._rng.sample(range(self.size), k=self._rng.randint(1, self.size)))

    def _case(self, asynchronous: bool) -> tuple[int, Case]:
        group = self._rng.randrange(GROUPS)
        self._count += 1
        name = f"{self._name}/{self._count}"
        size = len(self.members[group])
        case = draw(self._rng, name, size, any_combination(self._rng), tag=self._count)
        if self._rng.random() < 0.3:
            case = replace(case, shape=(int(10 ** self._rng.uniform(0, 4.5)),))
        if asynchronous and case.interface == "backend" and case.operation not in POINT_TO_POINT:
            case = replace(case, interface="group")  # the backend's own methods block
        return group, replace(case, asynchronous=asynchronous)


class Player:
    """One rank in a round."""

    def __init__(self, rank: int, seed: int, number: int):
        self.rank = rank
        self.rng = random.Random(f"{seed}/{number}/rank {rank}")  # differs between ranks
        self.plan = Plan(seed, number)
        self.groups = {0: dist.group.WORLD}
        self.in_flight: list[Exchange] = []
        self.operations = 0

    def play(self) -> int:
        for batch in self.plan.batches():
            if batch.members:
                self.make_groups(batch.members)
            for exchange in self.shuffled(self.exchanges(batch.started)):
                exchange.issue()
                self.in_flight.append(exchange)
            if self.rng.random() < 0.1:
                time.sleep(self.rng.uniform(0, 0.02))
            for exchange in self.exchanges(batch.blocking):
                exchange.issue()
                self.finish(exchange)
            self.finish_some(keep=self.rng.choice([0, 0, 3, 10]))
            self.operations += len(batch.started) + len(batch.blocking)
        self.finish_some(keep=0)
        return self.operations

    def make_groups(self, members: dict[int, list[int]]) -> None:
        self.finish_some(keep=0)
        for number, ranks in members.items():
            old = self.groups.pop(number, None)
            if old is not None:
                dist.destroy_process_group(old)
            made = dist.new_group(ranks)
            if self.rank in ranks:
                self.groups[number] = made

    def exchanges(self, cases: list[tuple[int, Case]]) -> list[Exchange]:
        mine = [(self.groups[g], case) for g, case in cases if g in self.groups]
        return [make_exchange(case, group.rank(), group) for group, case in mine]

    def shuffled(self, exchanges: list[Exchange]) -> Iterator[Exchange]:
        """Yields them in a random order that keeps the order of each group's collectives."""
        queues: dict = {}
        for i, exchange in enumerate(exchanges):
            free = exchange.case.operation in POINT_TO_POINT
            queues.setdefault(i if free else exchange.group, []).append(exchange)
        while queues:
            chosen = self.rng.choice(list(queues))
            yield queues[chosen].pop(0)
            if not queues[chosen]:
                del queues[chosen]

    def finish_some(self, keep: int) -> None:
        while len(self.in_flight) > keep:
            self.finish(self.in_flight.pop(self.rng.randrange(len(self.in_flight))))

    def finish(self, exchange: Exchange) -> None:
        try:
            exchange.wait()
            exchange.verify()
        except Exception as error:
            error.add_note(f"case {exchange.case}, layouts {exchange.layouts}")
            raise


def play(rank: int, size: int, seed: int, number: int, stall: bool) -> int:
    warnings.simplefilter("ignore", FutureWarning)  # both the old and the new names are called
    if stall and rank == 0:
        time.sleep(10_000)
    return Player(rank, seed, number).play()


def run_round(seed: int, number: int, bound_s: float, stall: bool = False) -> int:
    """Returns the number of operations; raises AssertionError with the errors of the ranks."""
    size = Plan(seed, number).size
    start = time.monotonic()
    operations = run_ranks(size, play, seed, number, stall, bound_s=bound_s)[0]
    seconds = time.monotonic() - start
    print(f"round {number}: {size} ranks, {operations} operations in {seconds:.1f} s", flush=True)
    return operations


def soak(seed: int, seconds: float, first: int, bound_s: float, stall: bool) -> None:
    end = time.monotonic() + seconds
    number, total = first, 0
    while number == first or time.monotonic() < end:
        total += run_round(seed, number, bound_s, stall)
        number += 1
    print(f"soak: seed {seed}, {number - first} rounds, {total} operations, all as expected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--round", type=int, help="run this one only")
    parser.add_argument("--bound", type=float, default=60, help="seconds after which a round hangs")
    parser.add_argument("--stall", action="store_true", help="rank 0 stops, as a test of the bound")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores
    print(f"soak: seed {args.seed}", flush=True)
    first, seconds = (0, args.seconds) if args.round is None else (args.round, 0)
    try:
        soak(args.seed, seconds, first, args.bound, args.stall)
    except AssertionError as error:
        sys.exit(f"soak: seed {args.seed} FAILED\n{error}")


if __name__ == "__main__":
    main()
