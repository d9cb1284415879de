"""Random faults: one rank of a job dies, exits, aborts or stops at a random step of a random call.

    python tests/soak/faults.py --trials 300                   prints its seed; a failure ends it
    python tests/soak/faults.py --trials 1 --seed 7 --first 12    repeats trial 12 of that seed

Every survivor must get an error that names that rank, and no other, before long. Then the survivors
make a new group whose sum must be right, with no more descriptors and threads than before. A rank
that only stops for a while causes no error. The last lines are latencies by fault: from the fault
to the error in Python.
"""

import argparse
import ctypes
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.ranks import init_group, started_ranks

TIMEOUT = timedelta(seconds=20)  # of the groups: no error may take that long
ERROR_BOUND_S = 10.0  # the goal is 0.1
TRIAL_BOUND_S = 60
STEPS_WITHOUT_ERROR = 40
SPARE_DESCRIPTORS, SPARE_THREADS = 8, 4
SIZES = (1, 1000, 300_000)


# ---- faults; each ends or disturbs the calling process


def end_script(code: int) -> None:
    ctypes.pythonapi.Py_Exit(code)  # with atexit handlers and destructors


def end_by_exception() -> None:
    sys.last_value = RuntimeError("the fault")
    end_script(1)


def abort_group() -> None:
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()


def stop_for_a_while() -> None:
    pid = os.getpid()
    with subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {pid}"]):
        os.kill(pid, signal.SIGSTOP)


FAULTS: dict[str, Callable[[], None]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: signal.raise_signal(signal.SIGSEGV),
    "_exit": lambda: os._exit(3),
    "sys.exit": lambda: end_script(0),
    "exception": end_by_exception,
    "abort": abort_group,
    "stop": stop_for_a_while,
}
#: Only the main thread of a script ends it.
ON_MAIN_THREAD = {"sys.exit", "exception"}
#: The rank goes on.
SURVIVED = {"abort", "stop"}


# ---- calls; each raises an error or checks its result


def all_reduce(rank: int, size: int, count: int) -> None:
    x = torch.full((count,), rank + 1.0)
    dist.all_reduce(x)
    assert x.eq(size * (size + 1) / 2).all(), "a wrong sum"


def all_reduces_in_flight(rank: int, size: int, count: int) -> None:
    tensors = [torch.full((count,), rank + 1.0) for _ in range(4)]
    for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
        work.wait()
    assert all(x.eq(size * (size + 1) / 2).all() for x in tensors), "a wrong sum"


def all_gather(rank: int, size: int, count: int) -> None:
    outputs = [torch.empty(count) for _ in range(size)]
    dist.all_gather(outputs, torch.full((count,), float(rank)))
    assert all(x.eq(r).all() for r, x in enumerate(outputs)), "wrong data"


def broadcast(rank: int, size: int, count: int) -> None:
    x = torch.full((count,), float(rank))
    dist.broadcast(x, count % size)
    assert x.eq(count % size).all(), "wrong data"


def all_to_all(rank: int, size: int, count: int) -> None:
    outputs = [torch.empty(count) for _ in range(size)]
    dist.all_to_all(outputs, [torch.full((count,), float(rank))] * size)
    assert all(x.eq(r).all() for r, x in enumerate(outputs)), "wrong data"


def ring(rank: int, size: int, count: int) -> None:
    x, y = torch.full((count,), float(rank)), torch.empty(count)
    send = dist.P2POp(dist.isend, x, (rank + 1) % size)
    receive = dist.P2POp(dist.irecv, y, (rank - 1) % size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    assert y.eq((rank - 1) % size).all(), "wrong data"


def barrier(rank: int, size: int, count: int) -> None:
    dist.barrier()


def new_group(rank: int, size: int, count: int) -> None:
    dist.destroy_process_group(dist.new_group(timeout=TIMEOUT))


CALLS = (
    all_reduce,
    all_reduces_in_flight,
    all_gather,
    broadcast,
    all_to_all,
    ring,
    barrier,
    new_group,
)


# ---- trials


@dataclass(frozen=True)
class Trial:
    name: str  # "seed/number"
    size: int
    victim: int
    fault: str
    step: int
    delay_s: float | None  # in the call, by another thread; None: before it, on the main thread

    @staticmethod
    def draw(seed: int, number: int) -> "Trial":
        rng = random.Random(f"{seed}/{number}")
        size, fault = rng.randint(2, 5), rng.choice(list(FAULTS))
        delay_s = rng.choice([None, rng.uniform(0, 0.003)])
        if fault in ON_MAIN_THREAD:
            delay_s = None
        victim, step = rng.randrange(size), rng.randint(0, 12)
        return Trial(f"{seed}/{number}", size, victim, fault, step, delay_s)

    def call(self, step: int) -> tuple[Callable[[int, int, int], None], int]:
        rng = random.Random(f"{self.name}/{step}")
        return rng.choice(CALLS), rng.choice(SIZES)


def resources() -> tuple[int, int]:
    """Descriptors and threads."""
    return tuple(sum(1 for _ in Path(f"/proc/self/{each}").iterdir()) for each in ("fd", "task"))


def meet_fault(trial: Trial, directory: str) -> None:
    (Path(directory) / "fault").write_text(repr(time.monotonic()))
    FAULTS[trial.fault]()


def run_calls(trial: Trial, rank: int, directory: str) -> None:
    step = 0
    while trial.fault != "stop" or step < STEPS_WITHOUT_ERROR:
        call, count = trial.call(step)
        if rank == trial.victim and step == trial.step:
            if trial.delay_s is None:
                meet_fault(trial, directory)
            else:
                threading.Timer(trial.delay_s, meet_fault, (trial, directory)).start()
        call(rank, trial.size, count)
        step += 1


def go_on(trial: Trial, rank: int, directory: str) -> None:
    """The survivors make a new group."""
    with_all = trial.fault in SURVIVED
    ranks = [r for r in range(trial.size) if with_all or r != trial.victim]
    dist.destroy_process_group()
    init_group(ranks.index(rank), len(ranks), f"{directory}/again", timeout=TIMEOUT)
    all_reduce(ranks.index(rank), len(ranks), 1000)


def play(rank: int, size: int, trial: Trial, directory: str) -> tuple[float, str]:
    """Returns when the error came, and its text."""
    dist.barrier()
    before = resources()
    error = ""
    try:
        run_calls(trial, rank, directory)
    except dist.DistBackendError as caught:
        error = str(caught)
    when = time.monotonic()
    go_on(trial, rank, directory)
    after = resources()
    assert after[0] <= before[0] + SPARE_DESCRIPTORS, f"descriptors: {before[0]} -> {after[0]}"
    assert after[1] <= before[1] + SPARE_THREADS, f"threads: {before[1]} -> {after[1]}"
    return when, error


def check_error(trial: Trial, rank: int, error: str) -> None:
    if trial.fault == "stop":
        assert not error, f"rank {rank}: {error}"
        return
    if trial.fault == "abort":
        assert f"rank {trial.victim} called abort()" in error, f"rank {rank}: {error!r}"
        return
    named = set(re.findall(r"rank (\d+)(?= \(host|, which is rank)", error))
    assert named == {str(trial.victim)}, f"rank {rank} names {named}: {error!r}"


def run_trial(trial: Trial) -> list[float]:
    """Returns the latencies of the survivors, in milliseconds."""
    latencies = []
    with tempfile.TemporaryDirectory() as directory:
        group = {"timeout": TIMEOUT}
        with started_ranks(
            trial.size, play, trial, directory, bound_s=TRIAL_BOUND_S, group=group
        ) as ranks:
            pass
        fault_time = float((Path(directory) / "fault").read_text())
    for number, rank in enumerate(ranks):
        if number == trial.victim and trial.fault not in SURVIVED:
            continue
        assert not rank.failure, f"rank {number}: {rank.failure}"
        when, error = rank.value
        check_error(trial, number, error)
        if trial.fault != "stop":
            latencies.append((when - fault_time) * 1000)
            assert latencies[-1] < ERROR_BOUND_S * 1000, f"rank {number}, late: {error}"
    return latencies


def report(latencies: dict[str, list[float]]) -> None:
    for fault, values in latencies.items():
        if not values:
            continue
        values.sort()
        p99 = values[int(0.99 * (len(values) - 1))]
        print(
            f"faults: {fault:10} {len(values):5} errors, ms to the error: "
            f"median {statistics.median(values):.1f}, p99 {p99:.1f}, max {values[-1]:.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seconds", type=float, help="end after this time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores
    print(f"faults: seed {args.seed}", flush=True)
    end = time.monotonic() + (args.seconds or float("inf"))
    latencies: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    done = 0
    for number in range(args.first, args.first + args.trials):
        trial = Trial.draw(args.seed, number)
        try:
            latencies[trial.fault] += run_trial(trial)
        except AssertionError as error:
            sys.exit(f"faults: FAILED: {trial}, step {trial.call(trial.step)}\n{error}")
        done += 1
        if time.monotonic() >= end:
            break
    report(latencies)
    print(f"faults: seed {args.seed}, {done} trials, all as expected")


if __name__ == "__main__":
    main()
