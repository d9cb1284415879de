"""Runs a trial and judges what its ranks report."""

import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch.distributed as dist
from support import ranks
from support.function_ranks import enter
from support.launchers import free_port
from support.rank_environments import rank_environments
from support.virtual_hosts import Host

from fault_harness.rank import JOINED, Outcome, Place, play
from fault_harness.steps import Steps
from fault_harness.table import LIVENESS_TIMEOUT_S, Effect
from fault_harness.trial import Trial

TRIAL_BOUND_S = 60
FIRST_USER = (
    200_000  # of trials whose ranks are ordinary users: root may start threads without limit
)
USERS = 10_000


@dataclass
class Problem(Exception):
    kind: str  # hang, wrong result, wrong name, no error, error, leak, no new group
    text: str


@dataclass
class Verdict:
    latencies_ms: list[float] = field(default_factory=list)  # of errors
    at_timeout: int = 0  # errors that came no earlier


# ---- the processes


def prepare_rank(enters, user: int, rank: int) -> None:
    if enters:
        enter(enters, rank)
    if user:
        os.setresuid(user, user, user)
        os.environ["HOME"] = "/nonexistent"


def user_of(trial: Trial) -> int:
    number = int(trial.name.split("/")[1])
    return FIRST_USER + number % USERS if trial.fault_name == "no threads" else 0


def serve_store(prepare, port: int, ready) -> None:
    prepare(0)
    store = dist.TCPStore("0.0.0.0", port, None, True, wait_for_workers=False)
    ready.send(store.port)
    signal.pause()


@contextlib.contextmanager
def store_process(trial: Trial, prepare, port: int) -> Iterator[int]:
    """Yields the id of the process that serves the store, if it is not a rank."""
    if trial.store != "server":
        yield 0
        return
    mine, theirs = ranks._context.Pipe(duplex=False)
    process = ranks._context.Process(target=serve_store, args=(prepare, port, theirs))
    process.start()
    try:
        mine.recv()
        yield process.pid
    finally:
        process.kill()
        process.join()


def attend(trial: Trial, steps: Steps, started: list, hosts: list[Host], directory: Path) -> None:
    """Ends what the rank cannot end itself: it is stopped, or its cable is cut."""
    fault = trial.fault
    if not fault.stopped_s and not fault.cut_s:
        return
    victim = started[trial.victim].process
    while steps.fault_time is None and victim.is_alive():
        time.sleep(0.001)
    if fault.stopped_s:
        time.sleep(fault.stopped_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGCONT)
    if fault.cut_s:
        host = hosts[trial.host_of(trial.victim)]
        host.link_down()
        time.sleep(fault.cut_s)
        host.link_up()
        (directory / JOINED).touch()


# ---- the verdict

#: What follows the number of a rank that an error blames, not of one that reports or waits.
BLAMED = (
    r" \(host",
    ", which is rank",
    " never joined",
    " or the launcher serves",
    r" called abort\(\)",
    " was interrupted",
    " left group",
    " failed to pass",
)
#: Errors that are not of a call.
OUTSIDE_OF_CALLS = r"called abort\(\)|left group \w+ with operations in flight"
WITHOUT_ERROR = (Effect.NONE, Effect.PERHAPS, Effect.NO_STORE)


def named_ranks(error: str) -> set[int]:
    error = re.sub(r": rank \d+ \([^)]*\) has no answer from", "", error)
    found = re.findall(rf"[Rr]anks? ([\d, ]*\d)(?={'|'.join(BLAMED)})", error)
    return {int(rank) for each in found for rank in each.split(",")}


def may_be_named(trial: Trial, rank: int, outcomes: dict[int, Outcome]) -> set[int]:
    """By the error of `rank`."""
    if trial.fault.effect is not Effect.UNREACHABLE:
        # Of split_group(), the error of one part is not known in the other: there, its ranks leave.
        left = {r for r, x in outcomes.items() if trial.call_name(x.call) == "split_group"}
        return {trial.victim} | (left - {rank})
    hosts = [trial.host_of(r) for r in range(trial.size)]
    cut = trial.host_of(trial.victim)
    return {r for r in range(trial.size) if (hosts[r] == cut) != (hosts[rank] == cut)}


def names_nobody_rightly(trial: Trial, rank: int, error: str) -> bool:
    effect = trial.fault.effect
    if rank == trial.victim and effect in (Effect.PERHAPS, Effect.STALLED):
        return True  # the error may be of Python; to a rank that was stopped the others have left
    if "error of rank 0 names it" in error or "rank 0 did not reply" in error:
        return True  # of monitored_barrier()
    if effect is Effect.STALLED and trial.store == "file" and " never joined" in error:
        return True  # the rank was stopped while it held the lock of torch's FileStore
    if effect is Effect.PERHAPS and serves_store(trial) and not error.startswith("ccl: "):
        return True  # torch's own connection to the store of a rank without descriptors or memory
    # All ranks are there, and any of them might have sent.
    return effect is Effect.PERHAPS and "from any rank" in error and "timed out" in error


def serves_store(trial: Trial) -> bool:
    """Whether the rank with the fault does."""
    return trial.store == "rank 0" and trial.victim == 0


def check_text(trial: Trial, rank: int, outcomes: dict[int, Outcome]) -> None:
    outcome, error = outcomes[rank], outcomes[rank].error
    if trial.fault.effect is Effect.NO_STORE:
        if not re.search("store|client socket|onnection", error):
            raise Problem("wrong name", f"does not name the store: {error}")
        return
    if names_nobody_rightly(trial, rank, error):
        return
    named = named_ranks(error)
    if not named or not named <= may_be_named(trial, rank, outcomes):
        raise Problem("wrong name", f"names {named or 'nobody'}: {error}")
    # A rank that sends may be some calls behind the rank that noticed the fault.
    calls = [each.call for each in outcomes.values()]
    names = set().union(*(trial.names_near(c) for c in range(min(calls), max(calls) + 1)))
    if not re.search(OUTSIDE_OF_CALLS, error) and not any(name in error for name in names):
        raise Problem("wrong name", f"names none of the calls {sorted(names)}: {error}")
    if outcome.error_type != "DistBackendError" and "monitoredBarrier" not in error:
        raise Problem("wrong name", f"raises {outcome.error_type}: {error}")


def check_error(trial: Trial, rank: int, outcomes: dict[int, Outcome]) -> None:
    effect, outcome = trial.fault.effect, outcomes[rank]
    try:
        if outcome.error and effect is Effect.NONE:
            raise Problem("error", outcome.error)
        if outcome.error:
            check_text(trial, rank, outcomes)
        elif effect not in WITHOUT_ERROR and not trial.ends:
            raise Problem("no error", "")
    except Problem as problem:
        problem.text = f"rank {rank} in call {outcome.call}: {problem.text}"
        raise


def outcome_of(trial: Trial, rank: int, ended: ranks.ForkedRank) -> Outcome | None:
    """None if the rank was to end."""
    if rank == trial.victim and not trial.fault.survives:
        if ended.process.exitcode == -signal.SIGABRT:
            raise Problem("crash", f"rank {rank}: an exception that nothing caught, or abort()")
        return None
    if ended.failure:
        hung = re.search(r"time limit|exit code 1\b", ended.failure)  # 1: by faulthandler
        raise Problem("hang" if hung else "no new group", f"rank {rank}: {ended.failure}")
    if ended.value.wrong:
        raise Problem("wrong result", f"rank {rank}: {ended.value.wrong}")
    if ended.value.leak:
        raise Problem("leak", f"rank {rank}: {ended.value.leak}")
    return ended.value


def run_trial(trial: Trial, hosts: list[Host]) -> Verdict:
    enters, address = None, "127.0.0.1"
    if hosts:
        environments = rank_environments(
            hosts, list(trial.layout), CCL_LIVENESS_TIMEOUT=str(LIVENESS_TIMEOUT_S)
        )
        enters = [(host.namespace_process.pid, own) for host, own in environments]
        address = hosts[0].address
    prepare = partial(prepare_rank, enters, user_of(trial))
    with tempfile.TemporaryDirectory() as name:
        directory, port = Path(name), free_port()
        directory.chmod(0o777)
        steps = Steps.create(directory / "control")
        (directory / "control").chmod(0o666)
        with store_process(trial, prepare, port) as store_pid:
            place = Place(directory, address, port, store_pid)
            with ranks.started_ranks(
                trial.size,
                play,
                trial,
                place,
                bound_s=TRIAL_BOUND_S,
                prepare=prepare,
                group=ranks.NO_GROUP,
            ) as started:
                attend(trial, steps, started, hosts, directory)
        return judge(trial, steps, started)


def judge(trial: Trial, steps: Steps, started: list[ranks.ForkedRank]) -> Verdict:
    try:
        return verdict_of(trial, steps, started)
    except Problem as problem:
        problem.text += "".join(f"\n  rank {r}: {summary_of(x)}" for r, x in enumerate(started))
        raise


def summary_of(ended: ranks.ForkedRank) -> str:
    if ended.failure:
        return ended.failure.strip().splitlines()[-1]
    outcome = ended.value
    return f"call {outcome.call}: {outcome.error or outcome.wrong or 'no error'}"


def verdict_of(trial: Trial, steps: Steps, started: list[ranks.ForkedRank]) -> Verdict:
    if steps.fault_time is None:
        raise Problem("no fault", "")
    found = {rank: outcome_of(trial, rank, ended) for rank, ended in enumerate(started)}
    outcomes = {rank: outcome for rank, outcome in found.items() if outcome}
    verdict = Verdict()
    for rank, outcome in outcomes.items():
        check_error(trial, rank, outcomes)
        if not outcome.error or rank == trial.victim:
            continue
        if trial.fault.effect is Effect.STALLED or "timed out" in outcome.error:
            verdict.at_timeout += 1
        else:
            verdict.latencies_ms.append((outcome.time - steps.fault_time) * 1000)
    return verdict
