"""Starts the ranks of a job, forwards their output and waits for their end: `torch-ccl run`.

    exit_code = Runner(job, Terminal()).run()

On every host an agent (torch_ccl/agent) starts the ranks: on this host a child of this process, on
other hosts through ssh. The agents report output and exit codes, end the ranks on request, and kill
them if this process dies. Rank 0 serves the store; the agent of its host reserves a free port for
it.
"""

import math
import os
import selectors
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_ccl import launchers
from torch_ccl.agent import protocol
from torch_ccl.child_environment import REMOVED_VARIABLES
from torch_ccl.cli.host_agent import (
    CLOSE_TIMEOUT_S,
    READ_BYTES,
    HostAgent,
    addresses_of,
    own_addresses,
)
from torch_ccl.cli.job import Job, JobOutput, Output
from torch_ccl.exit_status import (
    FAILURE_GRACE_S,
    TERMINATE_GRACE_S,
    ExitStatus,
    ProcessId,
    root_cause,
    signal_name,
)

ANSWER_TIMEOUT_S = 30.0  # for a host to answer
FIND_TIMEOUT_S = 10.0  # for a host to reach rank 0's host; less than ANSWER_TIMEOUT_S
LAST_ERROR_S = 0.5  # for ssh's error message after it has closed the connection
LONGEST_SLEEP_S = 1.0  # a signal handler may set one of the times below during a sleep
TIMED_OUT = 124  # the exit code of timeout(1)


class StartError(Exception):
    """One line that names the host, the reason and what to change."""


def _ranks_text(ranks: set[int]) -> str:
    """For example "rank 2" or "ranks 2, 3"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


class Runner:
    def __init__(self, job: Job, output: Output):
        self._job = job
        self._output = JobOutput(output, job.ranks)
        self._agents: list[HostAgent] = []
        self._selector = selectors.DefaultSelector()
        self._connected: set[HostAgent] = set()
        self._ranks: dict[ProcessId, int] = {}
        self._statuses: list[ExitStatus] = []
        self._stopping = False  # if true, exit codes are caused by our signals and ignored
        self._host_problem = ""
        self._received_signal: int | None = None
        self._stop_at: float | None = None
        self._give_up_at: float | None = None

    def run(self, timeout_s: float | None = None) -> int:
        """The exit code of the job. After `timeout_s` the ranks are terminated."""
        if timeout_s is not None:
            self._stop_at = time.monotonic() + timeout_s
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in handled}
        try:
            for number in handled:
                # An ignored SIGHUP means nohup. SIGINT is ignored in every `command &` of a script.
                if before[number] != signal.SIG_IGN or number == signal.SIGINT:
                    signal.signal(number, self._on_signal)
            self._start()
            while self._connected:
                self._step()
            return self._report_result()
        except StartError as problem:
            self._output.write_line(str(problem))
            return 128 + self._received_signal if self._received_signal else 1
        finally:
            for agent in self._agents:
                agent.disconnect()
            for agent in self._agents:
                agent.close()
            self._selector.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    # ---- start

    def _start(self) -> None:
        for host, ranks in self._job.hosts.items():
            try:
                agent = HostAgent(host, ranks, self._job.rsh)
            except OSError as problem:
                reason = f"{problem.filename}: {problem.strerror}"
                advice = "install it, or choose another command with --rsh"
                raise StartError(f"host {host} cannot be reached: {reason}; {advice}") from None
            self._agents.append(agent)
            self._connected.add(agent)
            read = selectors.EVENT_READ
            self._selector.register(agent.stdout, read, (self._on_stdout, agent))
            self._selector.register(agent.stderr, read, (self._on_stderr, agent))
        self._wait_until(lambda agent: agent.hello)
        self._find_store_address()
        for agent in self._agents:
            self._start_ranks(agent)

    def _wait_until(self, has_answered: Callable[[HostAgent], object]) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while missing := [agent for agent in self._agents if not has_answered(agent)]:
            if self._received_signal:
                raise StartError(f"stopped by {signal_name(self._received_signal)}")
            if time.monotonic() > deadline:
                agent = missing[0]
                reason = f"host {agent.host} did not answer within {ANSWER_TIMEOUT_S:g} s"
                raise StartError(reason + agent.advice)
            self._step()

    def _find_store_address(self) -> None:
        """Find an address of the first host, where rank 0 is, that each host can reach."""
        first, *others = self._agents
        first.store_address = launchers.LOOPBACK
        if not others:
            return
        candidates = self._candidate_addresses(first)
        for agent in others:
            agent.send(
                find={
                    "addresses": candidates,
                    "port": first.hello["probe"],
                    "token": first.hello["token"],
                    "within_s": FIND_TIMEOUT_S,
                }
            )
        self._wait_until(lambda agent: agent.store_address is not None)
        for agent in others:
            if not agent.store_address:
                raise StartError(
                    f"host {agent.host} cannot reach host {first.host}, where rank 0 is, at "
                    f"{', '.join(candidates) or 'any address'}: name it in --hosts by an address "
                    "that all hosts can reach"
                )
        first.store_address = others[0].store_address

    @staticmethod
    def _candidate_addresses(agent: HostAgent) -> list[str]:
        name = agent.host.rpartition("@")[2]
        addresses = [name, *addresses_of(name), *agent.hello["addresses"]]
        if agent.is_local:
            addresses += own_addresses()
        return [each for each in dict.fromkeys(addresses) if not launchers.is_loopback(each)]

    def _start_ranks(self, agent: HostAgent) -> None:
        common = {
            "PYTHONUNBUFFERED": "1",
            "WORLD_SIZE": str(self._job.size),
            "LOCAL_WORLD_SIZE": str(len(agent.ranks)),
            "MASTER_ADDR": agent.store_address,
            "MASTER_PORT": str(self._agents[0].hello["port"]),
        }
        own = self._job.environment if agent.is_local else self._job.remote_environment
        agent.send(
            start={
                "command": self._job.command,
                "directory": str(Path.cwd()),
                "ranks": [
                    {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
                    for local_rank, rank in enumerate(agent.ranks)
                ],
                "environment": {**own, **common},
                "unset": REMOVED_VARIABLES,
                "pin": self._job.pin,
                "grace_s": TERMINATE_GRACE_S,
            }
        )

    # ---- while the ranks run

    def _step(self) -> None:
        times = [at for at in (self._stop_at, self._give_up_at) if at is not None]
        left_s = min(times, default=math.inf) - time.monotonic()
        for key, _ in self._selector.select(min(max(0.0, left_s), LONGEST_SLEEP_S)):
            handler, agent = key.data
            data = os.read(key.fd, READ_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
            handler(agent, data)
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self._stop_ranks(signal.SIGTERM)
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            self._give_up()

    def _on_stdout(self, agent: HostAgent, data: bytes) -> None:
        for frame in agent.decoder.add(data):
            if frame.kind == protocol.MESSAGE:
                self._on_message(agent, frame.message)
            elif frame.kind == protocol.STDOUT:
                self._output.write_stdout(frame.rank, frame.payload)
            else:
                self._output.write_stderr(frame.rank, frame.payload)
        if not data:
            self._connected.discard(agent)
            self._on_disconnected(agent)

    def _on_stderr(self, agent: HostAgent, data: bytes) -> None:
        """Hold stderr back until the agent has answered: it may say why the agent does not."""
        agent.errors += data
        lines, newline, rest = agent.errors.rpartition(b"\n")
        if agent.hello and newline:
            self._output.write(2, f"[{agent.name}] ", lines + newline)
            agent.errors = rest

    def _on_message(self, agent: HostAgent, message: dict[str, Any]) -> None:
        if "hello" in message:
            agent.hello = message
            self._on_stderr(agent, b"")  # write what was held back
        elif "found" in message:
            agent.store_address = message["found"]
        elif "note" in message:
            self._output.write_line(f"host {agent.name}: {message['note']}")
        elif "started" in message:
            self._ranks[ProcessId(agent.name, message["pid"])] = message["started"]
        elif "ended" in message:
            rank, code = message["ended"], message["code"]
            agent.running.discard(rank)
            self._on_rank_ended(ExitStatus(rank, code, agent.name, time.monotonic()))

    def _on_rank_ended(self, status: ExitStatus) -> None:
        if self._stopping:
            return
        self._statuses.append(status)
        if status.code != 0:
            self._stop_within(FAILURE_GRACE_S)

    def _on_disconnected(self, agent: HostAgent) -> None:
        """An agent disconnects once all of its ranks have ended; otherwise the host is lost."""
        if not agent.hello:
            reason = agent.last_error_line(LAST_ERROR_S) or "no answer"
            raise StartError(f"host {agent.host} cannot be reached: {reason}{agent.advice}")
        if agent.running and not self._stopping:
            ranks = _ranks_text(agent.running)
            self._host_problem = f"lost the connection to host {agent.name} with {ranks}"
            self._stop_within(0)

    # ---- end

    def _stop_within(self, seconds: float) -> None:
        self._stop_at = min(self._stop_at or math.inf, time.monotonic() + seconds)

    def _stop_ranks(self, number: int) -> None:
        self._stopping = True
        self._stop_at = None
        self._give_up_at = time.monotonic() + TERMINATE_GRACE_S + CLOSE_TIMEOUT_S
        for agent in self._agents:
            agent.send(signal=number)

    def _give_up(self) -> None:
        for agent in self._connected:
            ranks = _ranks_text(agent.running)
            self._output.write_line(f"host {agent.name} did not report the end of {ranks}")
            agent.process.kill()
        self._connected.clear()

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._received_signal is not None:  # a second signal: exit now, the agents kill
            os._exit(128 + number)
        self._received_signal = number
        self._stop_ranks(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _report_result(self) -> int:
        if self._received_signal is not None:
            self._output.write_line(f"stopped by {signal_name(self._received_signal)}")
            return 128 + self._received_signal
        if cause := root_cause(self._statuses, self._output.tails, self._ranks):
            self._output.repeat_last_error(cause.rank)
            self._output.write_line(
                f"rank {cause.rank} on host {cause.host} failed first: {cause.text}"
            )
            return cause.exit_code
        if self._host_problem:
            self._output.write_line(self._host_problem)
            return 1
        if self._stopping:
            self._output.write_line("timed out: the ranks did not end in time")
            return TIMED_OUT
        return 0
