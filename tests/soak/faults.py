"""Random faults: something happens to one rank at step k of call n, and the others are judged.

    python tests/soak/faults.py --trials 300            prints its seed
    python tests/soak/faults.py --hosts --trials 60     over virtual hosts (needs root)
    python tests/soak/faults.py --seed 7 --first 12 --trials 1     repeats trial 12 of that seed
    python tests/soak/faults.py --only "no memory" --trials 20     a fault of fault_harness/table.py

The other ranks must end in time with an error that names that rank and the call, or with right
results, whatever the fault allows. Then those that are left make a new group whose sum must be
right, and hold no more memory, descriptors and threads than before. A step is a system call or a
store to shared memory (fault_harness/steps.cc). The latency is from the fault to the error in
Python.
"""

import argparse
import contextlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from fault_harness.judge import Problem, run_trial
from fault_harness.report import Report
from fault_harness.steps import preload
from fault_harness.table import FAULTS
from fault_harness.trial import draw
from support.commands import BUILD_DIR
from support.virtual_hosts import Host, virtual_hosts

LIBRARY = BUILD_DIR / "tests/libfault_steps.so"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--hosts", action="store_true", help="on virtual hosts; needs root")
    parser.add_argument("--only", choices=list(FAULTS), metavar="FAULT", help="this fault alone")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time; raises latencies")
    parser.add_argument("--verbose", action="store_true", help="print every trial")
    return parser.parse_args()


def repeat_command(args: argparse.Namespace, number: int) -> str:
    more = (" --hosts" if args.hosts else "") + (f' --only "{args.only}"' if args.only else "")
    return f"python tests/soak/faults.py --seed {args.seed} --first {number} --trials 1{more}"


class Run:
    """Trials of one seed, several at a time."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.report = Report(args.hosts)
        self._numbers = iter(range(args.first, args.first + args.trials))
        self._end = time.monotonic() + args.seconds
        self._lock = threading.Lock()

    def _next_number(self) -> int | None:
        with self._lock:
            return next(self._numbers, None) if time.monotonic() < self._end else None

    def work(self) -> None:
        with contextlib.ExitStack() as stack:
            hosts = stack.enter_context(virtual_hosts(2)) if self.args.hosts else []
            while (number := self._next_number()) is not None:
                self._run(number, hosts)

    def _run(self, number: int, hosts: list[Host]) -> None:
        args, begin = self.args, time.monotonic()
        trial = draw(args.seed, number, over_hosts=args.hosts, only=args.only)
        text = f"{trial}"
        try:
            verdict = run_trial(trial, hosts)
            with self._lock:
                self.report.add(trial, verdict)
        except Problem as problem:
            with self._lock:
                self.report.add_problem(problem)
            text = f"{problem.kind.upper()}: {trial}\n{problem.text}\n"
            text += f"  repeat: {repeat_command(args, number)}"
        if args.verbose or text != f"{trial}":
            print(f"faults: {text}, {time.monotonic() - begin:.1f} s", flush=True)


def main() -> None:
    args = arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # it prints stacks of lost connections to the store
    print(f"faults: seed {args.seed}", flush=True)
    preload(LIBRARY)
    run = Run(args)
    with ThreadPoolExecutor(args.jobs) as pool:
        for worker in [pool.submit(run.work) for _ in range(args.jobs)]:
            worker.result()
    run.report.print()
    print(f"faults: seed {args.seed}")
    sys.exit(1 if run.report.problems else 0)


if __name__ == "__main__":
    main()
