"""Thousands of random collectives through torch, compared with the reference.

python tests/support/torch_conformance.py --ranks 3 --cases 1500 --seed 7
python tests/support/torch_conformance.py --ranks 3 --seed 7 --only 117      one case again
python tests/support/torch_conformance.py --device standin                   on an accelerator
"""

import argparse
import itertools
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))  # as a program, too
from support.ranks import run_ranks
from support.torch_exchange import Case
from support.torch_layouts import place_on
from support.torch_operations import OPERATIONS, interfaces_of, make_exchange
from support.torch_reference import DTYPES, FLAVOURS, reductions_of

SHAPES = [(), (0,), (1,), (7,), (3, 5), (4, 0, 3), (2, 3, 4), (2, 3, 4, 5), (257,), (1000,)]
LARGE = (70_001,)  # more than one step of the algorithms, and not a multiple of anything
LARGE_SHARE = 0.02
MAX_FAILURES = 20


def combinations_by_operation() -> dict[str, list[tuple]]:
    """Returns every collective with every dtype and every reduction that is defined for it."""
    return {
        operation: [
            (operation, dtype, reduction)
            for dtype in DTYPES
            for reduction in (reductions_of(dtype) if row.reduces else [None])
        ]
        for operation, row in OPERATIONS.items()
    }


COMBINATIONS = combinations_by_operation()


def combinations() -> list[tuple]:
    return list(itertools.chain.from_iterable(COMBINATIONS.values()))


def any_combination(rng: random.Random) -> tuple:
    """All collectives are equally likely, however many reductions they have."""
    return rng.choice(COMBINATIONS[rng.choice(list(COMBINATIONS))])


def draw(rng: random.Random, seed: str, size: int, combination: tuple, tag: int = 0) -> Case:
    return Case(
        seed,
        *combination,
        size,
        shape=LARGE if rng.random() < LARGE_SHARE else rng.choice(SHAPES),
        interface=rng.choice(interfaces_of(*combination)),
        asynchronous=rng.random() < 0.5,
        root=rng.randrange(size),
        flavour=rng.choice(list(FLAVOURS)),
        tag=tag,
    )


def cases(seed: int, size: int, count: int) -> list[Case]:
    """Returns all combinations in random order, then random ones."""
    rng = random.Random(f"{seed}/{size}")
    drawn = rng.sample(combinations(), k=len(combinations()))
    drawn += [any_combination(rng) for _ in range(count - len(drawn))]
    return [
        draw(rng, f"{seed}/{size}/{i}", size, combination)
        for i, combination in enumerate(drawn[:count])
    ]


def run_case(case: Case, rank: int) -> int:
    exchange = make_exchange(case, rank, dist.group.WORLD)
    try:
        exchange.issue()
        exchange.wait()
        return exchange.verify()
    except Exception as error:
        error.add_note(f"layouts: {exchange.layouts}")
        raise


def run_cases(
    rank: int, size: int, seed: int, count: int, only: int | None, device: str
) -> tuple[list, list]:
    """Returns the result of each case (a number on which ranks agree), and the failures."""
    if device != "cpu":
        place_on(f"{device}:{rank}")
    warnings.simplefilter("ignore", FutureWarning)  # both the old and the new names are called
    numbers, failures = [], []
    chosen = cases(seed, size, count)
    for case in chosen if only is None else [chosen[only]]:
        try:
            numbers.append(run_case(case, rank))
        except Exception as error:
            numbers.append(None)
            notes = " ".join(getattr(error, "__notes__", []))
            failures.append(f"{case}: rank {rank}: {type(error).__name__}: {error} {notes}")
            if len(failures) == MAX_FAILURES or isinstance(error, dist.DistBackendError):
                break  # the group has failed
    return numbers, failures


def conformance(
    seed: int,
    size: int,
    count: int,
    *,
    only: int | None = None,
    device: str = "cpu",
    bound_s: float = 100,
) -> list[str]:
    """Runs the cases on `size` ranks and returns the failures."""
    results = run_ranks(size, run_cases, seed, count, only, device, bound_s=bound_s)
    failures = [failure for _, found in results for failure in found]
    chosen = cases(seed, size, count) if only is None else [cases(seed, size, count)[only]]
    for case, numbers in zip(chosen, zip(*(n for n, _ in results), strict=False), strict=False):
        if len(set(numbers)) > 1 and None not in numbers:
            failures.append(f"{case}: not the same bits on all ranks: {numbers}")
    return failures


def report(seed: int, counts: dict[int, int]) -> str:
    """Returns a report: how often each collective and dtype occurred, and ten cases."""
    chosen = [case for size, count in counts.items() for case in cases(seed, size, count)]
    found = Counter(case.operation for case in chosen) + Counter(case.dtype for case in chosen)
    sample = random.Random(seed).sample(chosen, k=10)
    lines = [f"{len(chosen)} cases through torch, seed {seed}, ranks: {counts}"]
    lines += [", ".join(f"{key} {found[key]}" for key in keys) for keys in (OPERATIONS, DTYPES)]
    lines += [f"  {case} {make_exchange(case, 0, None).layouts}" for case in sample]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--cases", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--device", default="cpu", help="rank r has its tensors on device:r")
    args = parser.parse_args()
    count = args.cases if args.only is None else max(args.cases, args.only + 1)
    failures = conformance(args.seed, args.ranks, count, only=args.only, device=args.device)
    print(report(args.seed, {args.ranks: count}))
    print(*failures, f"{len(failures)} failed", sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
