"""Starts the ranks of one host, forwards their output and exit codes, and ends them.

It reads requests from stdin. When stdin closes, because the runner died or the connection to its
host was lost, the agent kills the ranks. When the agent dies, the kernel kills them
(PR_SET_PDEATHSIG). The kernel acts when the *thread* that started a rank ends, so the agent has one
thread, which lives until all ranks have ended.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_ccl.agent import protocol
    from torch_ccl.agent.cores import RankCpus, cores_of, split_cores
    from torch_ccl.agent.ports import open_port
    from torch_ccl.agent.protocol import encode_frame, encode_message
    from torch_ccl.agent.rank_process import COULD_NOT_START, READ_BYTES, LineReader, RankProcess
else:  # run as a directory, which is then on sys.path
    import protocol
    from cores import RankCpus, cores_of, split_cores
    from ports import open_port
    from protocol import encode_frame, encode_message
    from rank_process import COULD_NOT_START, READ_BYTES, LineReader, RankProcess

STDIN, STDOUT = 0, 1
UNSENT_LIMIT = 1 << 20  # bytes queued for the runner; above it the ranks' output is not read
DRAIN_S = 0.5  # after the ranks have ended: time for the output of their children


def first_reachable(addresses: list[str], port: int, token: str, within_s: float) -> str:
    """The first address at which the host that knows the token answers; empty if none."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for address in addresses:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((address, port), timeout=2) as connection,
            ):
                if connection.recv(len(token), socket.MSG_WAITALL) == token.encode():
                    peer: str = connection.getpeername()[0]
                    return peer
        time.sleep(0.1)
    return ""


class Agent:
    def __init__(self) -> None:
        self._unsent = bytearray(protocol.MAGIC)
        self._received = b""
        self._runner_connected = True
        self._ranks: list[RankProcess] = []
        self._running: set[RankProcess] = set()
        self._handlers: dict[int, Callable[[], None]] = {STDIN: self._read_requests}
        self._output_handlers: dict[int, Callable[[], None]] = {}
        self._started = False
        self._stop_requested = False
        self._kill_at: float | None = None
        self._grace_s = 0.0
        self._port = open_port(listening=False)  # reserved until the agent ends
        self._probe = open_port(listening=True)
        self._token = secrets.token_hex(16)
        self._handlers[self._probe.fileno()] = self._answer_probe
        os.set_blocking(STDOUT, False)

    def serve(self) -> None:
        self._send_hello()
        while self._running or not self._started:
            self._step()
        self._drain_output()
        for rank in self._ranks:
            rank.signal_group(signal.SIGKILL)
        self._read_remaining_output()
        while self._unsent:
            self._step()

    def _step(self, timeout_s: float | None = None) -> None:
        poll = select.poll()
        is_full = len(self._unsent) > UNSENT_LIMIT
        # Output first: it must reach the runner before the exit code of its rank.
        for fd in () if is_full else self._output_handlers:
            poll.register(fd, select.POLLIN)
        for fd in self._handlers:
            poll.register(fd, select.POLLIN)
        if self._unsent:
            poll.register(STDOUT, select.POLLOUT)
        if self._kill_at is not None:
            left_s = max(0.0, self._kill_at - time.monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000):
            if fd == STDOUT:
                self._write_unsent()
            elif handler := self._output_handlers.get(fd) or self._handlers.get(fd):
                handler()  # an earlier handler may have removed it
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal_ranks(signal.SIGKILL)
            self._kill_at = None

    # ---- to the runner

    def _send(self, frame: bytes) -> None:
        if self._runner_connected:
            self._unsent += frame

    def _write_unsent(self) -> None:
        try:
            written = os.write(STDOUT, self._unsent[:READ_BYTES])
        except BlockingIOError:
            return
        except OSError:
            return self._on_runner_lost()
        del self._unsent[:written]

    def _send_hello(self) -> None:
        # Set by sshd: "<client> <port> <server> <port>". The server is an address of this host.
        connection = os.environ.get("SSH_CONNECTION", "").split()
        self._send(
            encode_message(
                hello=socket.gethostname(),
                port=self._port.getsockname()[1],
                probe=self._probe.getsockname()[1],
                token=self._token,
                addresses=connection[2:3],
            )
        )

    # ---- from the runner

    def _read_requests(self) -> None:
        try:
            data = os.read(STDIN, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            return self._on_runner_lost()
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._handle_request(json.loads(line))

    def _handle_request(self, request: dict[str, Any]) -> None:
        if "find" in request:
            self._send(encode_message(found=first_reachable(**request["find"])))
        elif "start" in request:
            self._start(**request["start"])
        elif "signal" in request:
            self._stop_requested = True
            self._signal_ranks(request["signal"])
            self._kill_at = time.monotonic() + self._grace_s

    def _on_runner_lost(self) -> None:
        self._runner_connected = False
        self._unsent.clear()
        self._handlers.pop(STDIN, None)
        self._started = True  # no start request can arrive any more
        self._signal_ranks(signal.SIGKILL)

    # ---- other agents, which search for an address of this host

    def _answer_probe(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._probe.accept()
            with connection:
                connection.sendall(self._token.encode())

    def _close_probe(self) -> None:
        del self._handlers[self._probe.fileno()]
        self._probe.close()

    # ---- ranks

    def _start(
        self,
        command: list[str],
        directory: str,
        ranks: list[dict[str, str]],
        environment: dict[str, str],
        unset: list[str],
        pin: bool,
        grace_s: float,
    ) -> None:
        """`ranks` holds the variables of each rank, in order of local rank."""
        self._close_probe()
        self._started = True
        if self._stop_requested:
            return
        self._grace_s = grace_s
        inherited = {**os.environ, **environment}
        common = {name: value for name, value in inherited.items() if name not in unset}
        available = cores_of(os.sched_getaffinity(0))
        shares = split_cores(available, len(ranks)) if pin else []
        if pin and not shares:
            count = sum(len(core.cpus) for core in available)
            self._send(encode_message(note=f"{len(ranks)} ranks on {count} CPUs: not pinned"))
        unpinned = RankCpus([], max(1, len(available) // len(ranks)))
        for local_rank, own in enumerate(ranks):
            cpus, threads = shares[local_rank] if shares else unpinned
            variables = {"OMP_NUM_THREADS": str(threads), **common, **own}
            self._start_rank(int(own["RANK"]), command, directory, variables, cpus)

    def _start_rank(
        self,
        number: int,
        command: list[str],
        directory: str,
        variables: dict[str, str],
        cpus: list[int],
    ) -> None:
        try:
            os.chdir(directory)
            rank = RankProcess(number, command, variables, cpus)
        except OSError as problem:
            line = f"{problem.strerror}: {problem.filename}\n".encode()
            self._send(encode_frame(protocol.STDERR, number, line))
            self._send(encode_message(ended=number, code=COULD_NOT_START))
            return
        self._ranks.append(rank)
        self._running.add(rank)
        self._handlers[rank.pidfd] = lambda: self._on_rank_ended(rank)
        self._forward(number, protocol.STDOUT, rank.stdout)
        self._forward(number, protocol.STDERR, rank.stderr)
        self._send(encode_message(started=number, pid=rank.pid))

    def _forward(self, rank: int, kind: bytes, stream: LineReader) -> None:
        def read() -> None:
            if lines := stream.read():
                self._send(encode_frame(kind, rank, lines))
            if stream.ended:
                del self._output_handlers[stream.fd]

        self._output_handlers[stream.fd] = read

    def _on_rank_ended(self, rank: RankProcess) -> None:
        del self._handlers[rank.pidfd]
        self._running.discard(rank)
        self._send(encode_message(ended=rank.rank, code=rank.exit_code()))

    def _signal_ranks(self, number: int) -> None:
        for rank in self._running:
            rank.signal_group(number)

    def _drain_output(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while self._output_handlers and self._runner_connected and time.monotonic() < deadline:
            self._step(timeout_s=0.05)

    def _read_remaining_output(self) -> None:
        for rank in self._ranks:
            for kind, stream in ((protocol.STDOUT, rank.stdout), (protocol.STDERR, rank.stderr)):
                if lines := stream.read_rest():
                    self._send(encode_frame(kind, rank.rank, lines))
        self._output_handlers.clear()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Agent().serve()
