"""Starts the ranks of a job and sees them through to their end: what `torch-ccl run` does.

    exit_code = Runner(job, Terminal()).run()

On every host an agent (`torch_ccl/agent`) starts the ranks of that host, here as a child of this
process, elsewhere by ssh. The agents say what the ranks write and how they end. They are told to
end the ranks, and kill them if this process is gone. Rank 0 serves the store, as without a
launcher; its agent holds the port for it.
"""

import math
import os
import select
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch_ccl import launchers
from torch_ccl.agent.frames import FACTS, OUT, Frame
from torch_ccl.cli.host_agent import GIVE_UP_S, PIECE, HostAgent, addresses_of, own_addresses
from torch_ccl.endings import (
    GRACE_S,
    PATIENCE_S,
    End,
    Process,
    Tail,
    first_to_fail,
    signal_name,
)
from torch_ccl.inheritance import UNSET

ANSWER_S = 30.0  # for a host to answer
FIND_S = 10.0  # for a host to find the way to that of rank 0, less than ANSWER_S
LAST_ERROR_S = 0.5  # for ssh to say why, when it has closed the connection
LONGEST_SLEEP_S = 1.0  # a signal may have set one of the times below meanwhile
NOT_IN_TIME = 124  # as timeout(1) says it


class CannotStart(Exception):
    """One line that says why and what to change; it names the host."""


@dataclass(frozen=True)
class Job:
    words: list[str]  # the command line of every rank
    hosts: dict[str, list[int]]  # the ranks on each host
    rsh: list[str] = field(default_factory=list)  # starts a command on another host
    environment: dict[str, str] = field(default_factory=dict)  # for ranks here
    environment_elsewhere: dict[str, str] = field(default_factory=dict)
    pin: bool = True

    @property
    def size(self) -> int:
        return sum(map(len, self.hosts.values()))


class Output(Protocol):
    """Where lines go; stream is 1 or 2."""

    def write(self, stream: int, prefix: str, lines: bytes) -> None: ...


class Terminal:
    """This process's stdout and stderr, unbuffered."""

    def write(self, stream: int, prefix: str, lines: bytes) -> None:
        begin = prefix.encode()
        text = memoryview(begin + lines[:-1].replace(b"\n", b"\n" + begin) + b"\n")
        while text:
            try:
                text = text[os.write(stream, text) :]
            except BlockingIOError:  # whoever started us made it so
                select.select([], [stream], [])


class Runner:
    def __init__(self, job: Job, output: Output):
        self._job = job
        self._output = output
        self._agents: list[HostAgent] = []
        self._selector = selectors.DefaultSelector()
        self._speaking: set[HostAgent] = set()
        self._shown_last: Tail | None = None  # whose last word nobody has interrupted yet
        self._tails = {rank: Tail() for ranks in job.hosts.values() for rank in ranks}
        self._ranks: dict[Process, int] = {}
        self._ends: list[End] = []
        self._ending = False  # by us: from then on it says nothing that a rank ends
        self._problem = ""  # of a host
        self._stopped_by: int | None = None
        self._stop_at: float | None = None
        self._give_up_at: float | None = None

    def run(self, bound_s: float | None = None) -> int:
        """The exit code of the job. After `bound_s` the ranks are ended."""
        if bound_s is not None:
            self._stop_at = time.monotonic() + bound_s
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in handled}
        try:
            for number in handled:
                # nohup means it; but SIGINT is ignored in all that a script runs with `&`.
                if before[number] != signal.SIG_IGN or number == signal.SIGINT:
                    signal.signal(number, self._on_signal)
            self._start()
            while self._speaking:
                self._step()
            return self._conclude()
        except CannotStart as problem:
            self._say(str(problem))
            return 128 + self._stopped_by if self._stopped_by else 1
        finally:
            for agent in self._agents:
                agent.hang_up()
            for agent in self._agents:
                agent.close()
            self._selector.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _say(self, line: str) -> None:
        self._show(2, "torch-ccl run: ", line.encode() + b"\n")

    def _show(self, stream: int, prefix: str, lines: bytes, by: Tail | None = None) -> None:
        self._shown_last = by
        self._output.write(stream, prefix, lines)

    # ---- starting

    def _start(self) -> None:
        for host, ranks in self._job.hosts.items():
            try:
                agent = HostAgent(host, ranks, self._job.rsh)
            except OSError as problem:
                reason = f"{problem.filename}: {problem.strerror}"
                advice = "install it, or name another command by --rsh"
                raise CannotStart(f"host {host} cannot be reached: {reason}; {advice}") from None
            self._agents.append(agent)
            self._speaking.add(agent)
            out, err = agent.process.stdout, agent.process.stderr
            self._selector.register(out, selectors.EVENT_READ, (self._hear, agent))
            self._selector.register(err, selectors.EVENT_READ, (self._hear_errors, agent))
        self._wait_until(lambda agent: agent.hello)
        self._find_master()
        for agent in self._agents:
            self._start_ranks(agent)

    def _wait_until(self, has_answered: Callable[[HostAgent], object]) -> None:
        end = time.monotonic() + ANSWER_S
        while missing := [agent for agent in self._agents if not has_answered(agent)]:
            if self._stopped_by:
                raise CannotStart(f"stopped by {signal_name(self._stopped_by)}")
            if time.monotonic() > end:
                silent = missing[0]
                reason = f"host {silent.host} does not answer within {ANSWER_S:g} s"
                raise CannotStart(reason + silent.advice)
            self._step()

    def _find_master(self) -> None:
        """Every host gets an address that leads it to the first one."""
        first, *others = self._agents
        first.master = launchers.LOOPBACK
        if not others:
            return
        candidates = self._ways_to(first)
        for agent in others:
            agent.tell(
                find={
                    "addresses": candidates,
                    "port": first.hello["probe"],
                    "token": first.hello["token"],
                    "within_s": FIND_S,
                }
            )
        self._wait_until(lambda agent: agent.master is not None)
        for agent in others:
            if not agent.master:
                raise CannotStart(
                    f"host {agent.host} cannot reach host {first.host}, where rank 0 is, at "
                    f"{', '.join(candidates) or 'any address'}: name it in --hosts by an address "
                    "that all hosts reach"
                )
        first.master = others[0].master

    @staticmethod
    def _ways_to(agent: HostAgent) -> list[str]:
        name = agent.host.rpartition("@")[2]
        ways = [name, *addresses_of(name), *agent.hello["addresses"]]
        if agent.here:
            ways += own_addresses()
        return [way for way in dict.fromkeys(ways) if not launchers.is_loopback(way)]

    def _start_ranks(self, agent: HostAgent) -> None:
        common = {
            "PYTHONUNBUFFERED": "1",
            "WORLD_SIZE": str(self._job.size),
            "LOCAL_WORLD_SIZE": str(len(agent.ranks)),
            "MASTER_ADDR": agent.master,
            "MASTER_PORT": str(self._agents[0].hello["port"]),
        }
        own = self._job.environment if agent.here else self._job.environment_elsewhere
        agent.tell(
            start={
                "words": self._job.words,
                "directory": str(Path.cwd()),
                "ranks": [
                    {"RANK": str(rank), "LOCAL_RANK": str(place)}
                    for place, rank in enumerate(agent.ranks)
                ],
                "environment": {**own, **common},
                "unset": UNSET,
                "pin": self._job.pin,
                "grace_s": GRACE_S,
            }
        )

    # ---- while they run

    def _step(self) -> None:
        times = [at for at in (self._stop_at, self._give_up_at) if at is not None]
        left_s = min(times, default=math.inf) - time.monotonic()
        for key, _ in self._selector.select(min(max(0.0, left_s), LONGEST_SLEEP_S)):
            hear, agent = key.data
            piece = os.read(key.fd, PIECE)
            if not piece:
                self._selector.unregister(key.fileobj)
            hear(agent, piece)
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self._end_ranks(signal.SIGTERM)
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            self._give_up()

    def _hear(self, agent: HostAgent, piece: bytes) -> None:
        for frame in agent.frames.add(piece):
            if frame.kind == FACTS:
                self._note(agent, frame.facts)
            else:
                self._pass_on(frame)
        if not piece:
            self._speaking.discard(agent)
            self._note_silence(agent)

    def _hear_errors(self, agent: HostAgent, piece: bytes) -> None:
        """Before the agent has answered they may say why it does not."""
        agent.errors += piece
        whole, newline, begun = agent.errors.rpartition(b"\n")
        if agent.hello and newline:
            self._show(2, f"[{agent.name}] ", whole + newline)
            agent.errors = begun

    def _pass_on(self, frame: Frame) -> None:
        prefix = f"[{frame.rank}] "
        if frame.kind == OUT:
            return self._show(1, prefix, frame.payload)
        tail = self._tails[frame.rank]
        begins = tail.add(frame.payload)
        by = tail if begins or self._shown_last is tail else None
        self._show(2, prefix, frame.payload, by)

    def _note(self, agent: HostAgent, facts: dict) -> None:
        if "hello" in facts:
            agent.hello = facts
            self._hear_errors(agent, b"")  # those that were held back
        elif "found" in facts:
            agent.master = facts["found"]
        elif "note" in facts:
            self._say(f"host {agent.name}: {facts['note']}")
        elif "started" in facts:
            self._ranks[Process(agent.name, facts["pid"])] = facts["started"]
        elif "ended" in facts:
            agent.running.discard(facts["ended"])
            self._note_end(End(facts["ended"], facts["code"], agent.name, time.monotonic()))

    def _note_end(self, end: End) -> None:
        if self._ending:
            return
        self._ends.append(end)
        if end.code != 0:
            self._stop_within(PATIENCE_S)

    def _note_silence(self, agent: HostAgent) -> None:
        """It has nothing more to say; that is right if all of its ranks have ended."""
        if not agent.hello:
            reason = agent.read_errors(LAST_ERROR_S) or "no answer"
            raise CannotStart(f"host {agent.host} cannot be reached: {reason}{agent.advice}")
        if agent.running and not self._ending:
            ranks = ", ".join(map(str, sorted(agent.running)))
            self._problem = f"the connection to host {agent.name} is lost, and with it rank {ranks}"
            self._stop_within(0)

    # ---- the end

    def _stop_within(self, seconds: float) -> None:
        self._stop_at = min(self._stop_at or math.inf, time.monotonic() + seconds)

    def _end_ranks(self, number: int) -> None:
        self._ending = True
        self._stop_at = None
        self._give_up_at = time.monotonic() + GRACE_S + GIVE_UP_S
        for agent in self._agents:
            agent.tell(signal=number)

    def _give_up(self) -> None:
        for agent in self._speaking:
            ranks = ", ".join(map(str, sorted(agent.running)))
            self._say(f"host {agent.name} does not say that rank {ranks} has ended")
            agent.process.kill()
        self._speaking.clear()

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._stopped_by is not None:  # somebody does not want to wait: the agents kill
            os._exit(128 + number)
        self._stopped_by = number
        self._end_ranks(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _conclude(self) -> int:
        if self._stopped_by is not None:
            self._say(f"stopped by {signal_name(self._stopped_by)}")
            return 128 + self._stopped_by
        if first := first_to_fail(self._ends, self._tails, self._ranks):
            tail = self._tails[first.rank]
            if tail is not self._shown_last and (last_word := tail.last_word()):
                self._show(2, f"[{first.rank}] ", last_word)
            self._say(f"rank {first.rank} on host {first.host} failed first: {first.text}")
            return first.exit_code
        if self._problem:
            self._say(self._problem)
            return 1
        if self._ending:
            self._say("the ranks have not ended in time")
            return NOT_IN_TIME
        return 0
