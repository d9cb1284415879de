"""What a rank does in a trial: calls until an error, then a new group of those that are left."""

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fault_harness.calls import warm_up
from fault_harness.resources import Resources, exceeding, settled_resources
from fault_harness.steps import Steps
from fault_harness.table import FAULTS, SCRIPT_SIGNAL, Action, Effect
from fault_harness.trial import CALLS_WITH_STEPS, MAX_CALLS, MORE_CALLS, Trial

#: Of the largest tensor of a call, which has 1,200,000 bytes.
TENSOR_PAGES = 293
#: How much more than the group before the new groups may hold: the thread pool grows, the heap
#: keeps freed tensors. The second new group shows whether something grows.
SPARE = [
    {
        "threads": 3,
        "file": 2,
        "pipe": 2,
        "socket": 6,
        "anon_inode": 2,
        "shared pages": 100 + 3 * TENSOR_PAGES,
    },
    {"threads": 3, "socket": 2, "shared pages": 8},
]


#: Of the group of those that are left: they do not come at the same time.
NEW_GROUP_TIMEOUT = timedelta(seconds=30)


#: A file: the cable is joined. The store in a file works without it.
JOINED = "joined"


class ScriptFails(BaseException):
    """The exception by which the script ends; nothing catches it."""


@dataclass(frozen=True)
class Place:
    """Where the ranks of a trial meet."""

    directory: Path
    address: str  # of the store
    port: int
    store_pid: int  # of its own process, or 0


@dataclass
class Outcome:
    """Of one rank."""

    time: float = 0.0
    call: int = 0  # in which it ended
    error: str = ""
    error_type: str = ""
    wrong: str = ""  # results
    leak: str = ""


# ---- the fault


def end_script(trial: Trial) -> None:
    """With atexit handlers and destructors."""
    if trial.fault_name == "exception":
        sys.last_value = RuntimeError("the fault")
    ctypes.pythonapi.Py_Exit(trial.fault_name == "exception")


def on_script_signal(number, frame) -> None:
    raise ScriptFails


def abort_when_asked() -> int:
    """Starts the thread that aborts the group; returns the descriptor that asks it to."""
    asked, ask = os.pipe()

    def main() -> None:
        os.read(asked, 1)
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()

    threading.Thread(target=main, daemon=True).start()
    return ask


def arm(trial: Trial, place: Place, steps: Steps) -> None:
    fault, argument = trial.fault, trial.fault.argument
    if argument == SCRIPT_SIGNAL:
        signal.signal(SCRIPT_SIGNAL, on_script_signal)
    if fault.action is Action.KILL:
        argument = place.store_pid
    if fault.action is Action.WRITE:
        argument = abort_when_asked() if fault.effect is Effect.ABORTED else os.pipe()[1]
    steps.arm(fault.action, argument, trial.step, headers_only=trial.headers_only)


def lift_limits() -> None:
    for fault in FAULTS.values():
        if fault.action is Action.LIMIT:
            _, hard = resource.getrlimit(fault.argument)
            resource.setrlimit(fault.argument, (hard, hard))


# ---- the calls


def make_store(trial: Trial, place: Place, rank: int):
    if trial.store == "file":
        return dist.FileStore(str(place.directory / "store"), trial.size)
    serves = trial.store == "rank 0" and rank == 0
    return dist.TCPStore(
        place.address, place.port, None, serves, trial.timeout, wait_for_workers=False
    )


def wait_for_all(trial: Trial, place: Place, rank: int) -> None:
    (place.directory / f"ready{rank}").touch()
    while not all((place.directory / f"ready{r}").exists() for r in range(trial.size)):
        time.sleep(0.001)


class Player:
    def __init__(self, trial: Trial, place: Place, rank: int):
        self.trial, self.place, self.rank = trial, place, rank
        self.steps = Steps(place.directory / "control") if rank == trial.victim else None
        self.store = make_store(trial, place, rank)
        wait_for_all(trial, place, rank)  # else torch's connection to the store may be what fails
        self.outcome = Outcome()
        self.armed = False
        self.before: Resources | None = None  # in the group of all ranks

    def init(self, store, rank: int, size: int, timeout: timedelta) -> None:
        dist.init_process_group("ccl", store=store, rank=rank, world_size=size, timeout=timeout)

    def make_call(self, call: int) -> None:
        trial = self.trial
        if call == 0:
            return self.init(self.store, self.rank, trial.size, trial.timeout)
        if call == trial.call and trial.ends:
            return dist.destroy_process_group()
        trial.call_at(call).run(trial.job(call, self.rank))

    def is_last(self, call: int) -> bool:
        trial = self.trial
        if trial.ends:
            return call == trial.call
        endless = trial.fault.effect not in (Effect.NONE, Effect.PERHAPS, Effect.NO_STORE)
        return call == trial.call + (MAX_CALLS if endless else MORE_CALLS)

    def run_call(self, call: int) -> None:
        self.outcome.call = call
        if self.steps and call == self.trial.call:
            arm(self.trial, self.place, self.steps)
            self.armed = True
        self.make_call(call)
        if call == 0 and self.trial.call > 0:
            warm_up(self.trial.size, self.trial.size)
            self.before = settled_resources()
        if self.steps and (self.is_last(call) or call == self.trial.call + CALLS_WITH_STEPS):
            self.steps.inject_unless_done()

    def run_calls(self) -> None:
        """Until an error, or until enough calls had none."""
        call = 0
        try:
            while True:
                self.run_call(call)
                if self.is_last(call):
                    break
                call += 1
        except AssertionError as wrong:
            self.outcome.wrong = f"call {call}: {wrong!r}"
        except Exception as error:
            self.outcome.error, self.outcome.error_type = str(error), type(error).__name__
        self.outcome.time = time.monotonic()
        if self.steps and self.armed:
            self.steps.disarm()
        lift_limits()

    def go_on(self) -> None:
        """Those that are left make a new group, twice: a leak would grow."""
        trial = self.trial
        left = [r for r in range(trial.size) if trial.fault.survives or r != trial.victim]
        while trial.fault.cut_s and not (self.place.directory / JOINED).exists():
            time.sleep(0.01)
        for attempt in range(2):
            if dist.is_initialized():
                dist.destroy_process_group()
            store = dist.FileStore(str(self.place.directory / f"again{attempt}"), len(left))
            self.init(store, left.index(self.rank), len(left), NEW_GROUP_TIMEOUT)
            warm_up(len(left), trial.size)
            self.check_leaks(attempt)
        dist.destroy_process_group()

    def check_leaks(self, attempt: int) -> None:
        limit = self.before + Counter(SPARE[attempt]) if self.before else None
        found = settled_resources(limit)
        if limit:
            for kind, numbers in exceeding(found, limit).items():
                self.outcome.leak += f"new group {attempt}: {kind} {numbers}; "
        self.before = found


def play(rank: int, size: int, trial: Trial, place: Place) -> Outcome:
    """Called in the rank's process; `size` is that of the trial."""
    try:
        player = Player(trial, place, rank)
        player.run_calls()
        if rank != trial.victim or trial.fault.survives:
            player.go_on()
        return player.outcome
    except ScriptFails:
        end_script(trial)
