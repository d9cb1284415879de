"""A training with torchft's Manager and lighthouse, whose replicas meet faults and start again.

    with Job(3, steps=100) as job:
        job.start_all()
        recovery = job.fault("kill")    # of one replica; the others go on without it
        job.rejoin()                    # a new process takes its place
        trainings = job.finish()

It runs in the environment .venv/applications, which has torchft. A replica is one process, which is
forked from a server that has loaded torch and torchft. Replicas take only as many steps as the job
allows, so that the sequence of events does not depend on the speed of the machine.
"""

import contextlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from multiprocessing.connection import Connection, wait

import torch
import torch.distributed as dist
import torchft
from torchft.coordination import LighthouseServer

from support.resumable_training import Training

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torchft", "torch_ccl.torchft"])

PAUSE_S = 0.1  # in which a new replica asks for the next group

#: Where a replica meets each fault, and how its process ends.
FAULTS = {
    "kill": "SIGKILL before its all_reduce",
    "kill after all_reduce": "SIGKILL between all_reduce and commit",
    "exception": "an exception before its all_reduce",
    "stop": "SIGSTOP before its all_reduce",
    "kill in configure": "SIGKILL when a new replica joins the group",
}


class InjectedError(Exception):
    pass


@dataclass(frozen=True)
class Options:
    """Of all replicas of a job. `heartbeat_ms`: after that time without a heartbeat the lighthouse
    takes a replica for dead."""

    steps: int
    backend: str = "ccl"
    asynchronous_quorum: bool = False
    timeout_s: float = 60
    heartbeat_ms: int = 2000


# ---- a replica


class Replica:
    """The process of a replica: it reports events, and waits for the job's permissions."""

    def __init__(self, number: int, options: Options, lighthouse: str, connection: Connection):
        self.options = options
        self.connection = connection
        self.allowed_steps = 0
        self.pending_fault = ""
        self.training = Training()
        self.store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = torchft.Manager(
            pg=self.make_group(),
            load_state_dict=self.training.load_state_dict,
            state_dict=self.training.state_dict,
            min_replica_size=1,
            init_sync=False,  # all start with the same weights
            use_async_quorum=options.asynchronous_quorum,
            timeout=timedelta(seconds=options.timeout_s),
            quorum_timeout=timedelta(seconds=60),
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self.store.port,
            lighthouse_addr=lighthouse,
            replica_id=f"replica_{number}",
            hostname="localhost",
        )

    def make_group(self):
        from torch_ccl.torchft import ProcessGroupCCL

        base = {"ccl": ProcessGroupCCL, "gloo": torchft.ProcessGroupGloo}[self.options.backend]
        replica = self

        class Group(base):
            def configure(self, *arguments):
                if replica.pending_fault == "kill in configure":
                    replica.meet_fault()
                start = time.monotonic()
                super().configure(*arguments)
                replica.report("configured", time.monotonic() - start)

        return Group(timedelta(seconds=self.options.timeout_s))

    def report(self, event: str, value: object = None) -> None:
        self.connection.send((event, time.monotonic(), self.training.step, value))

    def wait_for_permission(self) -> None:
        while self.training.step >= self.allowed_steps or self.connection.poll():
            name, value = self.connection.recv()
            if name == "allow":
                self.allowed_steps = value
            else:
                self.pending_fault = value

    def meet_fault(self, *faults: str) -> None:
        if faults and self.pending_fault not in faults:
            return
        self.report("fault")
        if self.pending_fault == "exception":
            raise InjectedError
        os.kill(os.getpid(), signal.SIGSTOP if self.pending_fault == "stop" else signal.SIGKILL)

    def take_step(self) -> None:
        """A step that is not committed is taken again."""
        manager, training = self.manager, self.training
        manager.start_quorum()
        rank = manager.participating_rank() or 0  # None: heals, and contributes zeros
        gradients = training.gradients(rank, manager.num_participants())
        self.meet_fault("kill", "exception", "stop")
        for gradient in gradients:
            manager.allreduce(gradient).wait()
        if manager.errored():
            self.report("failed", str(manager.errored().original_exception))
        self.meet_fault("kill after all_reduce")
        if manager.should_commit():
            training.apply(gradients)
            assert training.step == manager.current_step()
            self.report("committed", manager.num_participants())

    def run(self) -> None:
        self.report("ready")
        self.wait_for_permission()
        while self.training.step < self.options.steps:
            self.take_step()
            if self.training.step < self.options.steps:
                self.wait_for_permission()
        self.manager.shutdown()
        self.report("done", self.training.to_bytes())


def _replica_main(*arguments) -> None:
    logging.disable(logging.CRITICAL)  # torchft logs the errors that are expected here
    connection = arguments[-1]
    try:
        Replica(*arguments).run()
    except InjectedError:
        sys.exit(1)
    except BaseException:
        connection.send(("error", time.monotonic(), -1, traceback.format_exc()))
        raise


# ---- the job


@dataclass
class Event:
    name: str
    time_s: float
    step: int
    value: object


class Process:
    """The job's view of a replica."""

    def __init__(self, number: int, options: Options, lighthouse: str):
        self.number = number
        self.events: list[Event] = []
        self.connection, theirs = _context.Pipe()
        self.process = _context.Process(
            target=_replica_main, args=(number, options, lighthouse, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.is_alive = True

    def receive(self) -> None:
        self.is_alive = self.process.is_alive()  # before the last events
        try:
            while self.connection.poll():
                self.events.append(Event(*self.connection.recv()))
        except (EOFError, ConnectionResetError):
            pass

    def send(self, name: str, value: object) -> None:
        with contextlib.suppress(OSError):
            self.connection.send((name, value))

    @property
    def committed(self) -> int:
        return max((e.step for e in self.events if e.name == "committed"), default=0)

    def times(self, name: str, since_s: float) -> list[Event]:
        return [e for e in self.events if e.name == name and e.time_s >= since_s]


@dataclass
class Recovery:
    """Milliseconds from a fault, of the slowest survivor; `configure_ms` is a duration."""

    fault: str
    replicas: int
    failed_ms: float | None
    configure_ms: float
    committed_ms: float
    messages: list[str]


class Job:
    def __init__(self, replicas: int, *, bound_s: float = 300, **options):
        self.options = Options(**options)
        self.size = replicas
        self.replicas: list[Process] = []
        self.allowed = 0
        self.deadline = time.monotonic() + bound_s

    def __enter__(self):
        # A quorum waits for all replicas that send heartbeats: none is left out because it is slow.
        self.lighthouse = LighthouseServer(
            bind="[::]:0",
            min_replicas=1,
            join_timeout_ms=60_000,
            heartbeat_timeout_ms=self.options.heartbeat_ms,
        )
        port = self.lighthouse.address().rpartition(":")[2]
        self.address = f"http://localhost:{port}"
        return self

    def __exit__(self, *error):
        for replica in self.replicas:
            replica.process.kill()
            replica.process.join()
        self.lighthouse.shutdown()

    # ---- events

    def wait_until(self, reached, what: str) -> None:
        while not reached():
            connections = [r.connection for r in self.replicas if r.process.is_alive()]
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"not reached in time: {what}\n{self.history()}")
            wait(connections, min(left, 0.2))
            self.receive()

    def receive(self) -> None:
        for replica in self.replicas:
            replica.receive()
            if errors := replica.times("error", 0):
                raise RuntimeError(f"replica {replica.number}: {errors[0].value}")
            if not (replica.is_alive or replica.times("fault", 0) or replica.times("done", 0)):
                raise RuntimeError(f"replica {replica.number} has ended: {replica.events[-5:]}")

    def history(self) -> str:
        return "\n".join(f"replica {r.number}: {r.events[-8:]}" for r in self.replicas)

    def allow(self, steps: int) -> None:
        self.allowed = steps
        for replica in self.replicas:
            replica.send("allow", steps)

    # ---- the course of a training

    def start(self, number: int) -> Process:
        replica = Process(number, self.options, self.address)
        self.replicas.append(replica)
        self.wait_until(lambda: replica.times("ready", 0), f"replica {number} is ready")
        return replica

    def start_all(self) -> None:
        for number in range(self.size):
            self.start(number)
        self.allow(2)
        self.wait_until(lambda: all(r.committed == 2 for r in self.replicas), "the first steps")

    def fault(self, fault: str) -> Recovery:
        """The replica that runs longest meets it; the others take two steps without it."""
        victim = self.replicas[-1 if fault == "kill in configure" else 0]
        survivors = [replica for replica in self.replicas if replica is not victim]
        victim.send("fault", fault)
        self.allow_until(lambda: bool(victim.times("fault", 0)), survivors)
        start = victim.times("fault", 0)[0].time_s
        self.allow(self.allowed + 1)

        def gone_on(replica: Process) -> bool:
            return bool(replica.times("configured", start)) and replica.committed >= self.allowed

        self.wait_until(lambda: all(map(gone_on, survivors)), f"going on after {fault}")
        self.replicas.remove(victim)
        victim.process.kill()
        victim.process.join()
        return self.recovery(fault, survivors, start)

    def allow_until(self, reached, replicas: list[Process]) -> None:
        """Allows steps one by one."""

        def stands() -> bool:
            return all(replica.committed >= self.allowed for replica in replicas)

        while not reached():
            if self.allowed >= self.options.steps - 1:
                raise RuntimeError(f"no step is left\n{self.history()}")
            self.allow(self.allowed + 1)
            self.wait_until(lambda: reached() or stands(), "a step")
            if not reached():
                time.sleep(PAUSE_S)
                self.receive()

    def recovery(self, fault: str, survivors: list[Process], start: float) -> Recovery:
        failed, configure, committed, messages = [], [], [], []
        for replica in survivors:
            errors = replica.times("failed", start)
            configured = replica.times("configured", start)[-1]
            failed += [errors[0].time_s - start] if errors else []
            messages += [str(error.value) for error in errors]
            configure.append(configured.value)
            committed.append(replica.times("committed", configured.time_s)[0].time_s - start)
        slowest_failed = 1000 * max(failed) if failed else None
        return Recovery(
            fault,
            len(survivors) + 1,
            slowest_failed,
            1000 * max(configure),
            1000 * max(committed),
            messages,
        )

    def start_missing(self) -> Process:
        return self.start(min(set(range(self.size)) - {r.number for r in self.replicas}))

    def rejoin(self) -> None:
        """Starts the missing replica; the others take steps until it takes part."""
        others = list(self.replicas)
        new = self.start_missing()
        self.allow_until(lambda: new.committed > 0, others)

    def fault_in_configure(self) -> Recovery:
        """The missing replica is started, and killed when it joins the group."""
        self.start_missing()
        return self.fault("kill in configure")

    def finish(self) -> list[Training]:
        """What each replica has at the end."""
        self.allow(self.options.steps)
        self.wait_until(lambda: all(r.times("done", 0) for r in self.replicas), "the end")
        trainings = [Training() for _ in self.replicas]
        for training, replica in zip(trainings, self.replicas, strict=True):
            training.load(io.BytesIO(replica.times("done", 0)[0].value))
        return trainings


def versions() -> str:
    return f"torch {torch.__version__}, torchft {version('torchft')}"
