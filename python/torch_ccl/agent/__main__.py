"""Starts the ranks of one host, passes on what they write and how they end, and ends them.

It listens on stdin. When that ends, because the runner has died or the connection to its host is
gone, the ranks are killed. When this process dies, the kernel kills them.
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

from cores import cores, shares
from frames import ERR, MAGIC, OUT, encoded, encoded_facts
from ports import open_port
from rank_process import COULD_NOT_START, PIECE, Lines, RankProcess

STDIN, STDOUT = 0, 1
UNSENT_LIMIT = 1 << 20  # bytes for the runner; beyond that the ranks have to wait
LAST_WORDS_S = 0.5  # for what ranks have started and that still writes when they have ended


def first_that_answers(addresses: list[str], port: int, token: str, within_s: float) -> str:
    """By which the host that knows the token is reached from here; empty if by none."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        for address in addresses:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((address, port), timeout=2) as connection,
            ):
                if connection.recv(len(token), socket.MSG_WAITALL) == token.encode():
                    return connection.getpeername()[0]
        time.sleep(0.1)
    return ""


class Agent:
    def __init__(self) -> None:
        self._unsent = bytearray(MAGIC)
        self._heard = b""
        self._runner_listens = True
        self._ranks: list[RankProcess] = []
        self._running: set[RankProcess] = set()
        self._handlers: dict[int, Callable[[], None]] = {STDIN: self._hear}
        self._streams: dict[int, Callable[[], None]] = {}
        self._started = False
        self._told_to_end = False
        self._kill_at: float | None = None
        self._grace_s = 0.0
        self._port = open_port(listening=False)  # held until the end
        self._probe = open_port(listening=True)
        self._token = secrets.token_hex(16)
        self._handlers[self._probe.fileno()] = self._answer_probe
        os.set_blocking(STDOUT, False)

    def serve(self) -> None:
        self._say_hello()
        while self._running or not self._started:
            self._step()
        self._hear_last_words()
        for rank in self._ranks:
            rank.signal_group(signal.SIGKILL)
        self._empty_pipes()
        while self._unsent:
            self._step()

    def _step(self, timeout_s: float | None = None) -> None:
        poll = select.poll()
        full = len(self._unsent) > UNSENT_LIMIT
        # Streams first: what a rank has written comes before how it has ended.
        for fd in () if full else self._streams:
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
                self._send()
            elif handler := self._streams.get(fd) or self._handlers.get(fd):
                handler()  # unless one before it has removed it
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._end_ranks(signal.SIGKILL)
            self._kill_at = None

    # ---- to the runner

    def _say(self, frame: bytes) -> None:
        if self._runner_listens:
            self._unsent += frame

    def _send(self) -> None:
        try:
            sent = os.write(STDOUT, self._unsent[:PIECE])
        except BlockingIOError:
            return
        except OSError:
            return self._lose_runner()
        del self._unsent[:sent]

    def _say_hello(self) -> None:
        # "<client> <port> <server> <port>", set by sshd: an address by which we are reached.
        connection = os.environ.get("SSH_CONNECTION", "").split()
        self._say(
            encoded_facts(
                hello=socket.gethostname(),
                port=self._port.getsockname()[1],
                probe=self._probe.getsockname()[1],
                token=self._token,
                addresses=connection[2:3],
            )
        )

    # ---- from the runner

    def _hear(self) -> None:
        try:
            piece = os.read(STDIN, PIECE)
        except OSError:
            piece = b""
        if not piece:
            return self._lose_runner()
        *lines, self._heard = (self._heard + piece).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, request: dict) -> None:
        if "find" in request:
            self._say(encoded_facts(found=first_that_answers(**request["find"])))
        elif "start" in request:
            self._start(**request["start"])
        elif "signal" in request:
            self._told_to_end = True
            self._end_ranks(request["signal"])
            self._kill_at = time.monotonic() + self._grace_s

    def _lose_runner(self) -> None:
        self._runner_listens = False
        self._unsent.clear()
        self._handlers.pop(STDIN, None)
        self._started = True  # nobody will ask for it any more
        self._end_ranks(signal.SIGKILL)

    # ---- other agents, which look for the way to this host

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
        words: list[str],
        directory: str,
        ranks: list[dict[str, str]],
        environment: dict[str, str],
        unset: list[str],
        pin: bool,
        grace_s: float,
    ) -> None:
        """`ranks` are the variables of each of them, in their order on this host."""
        self._close_probe()
        self._started = True
        if self._told_to_end:
            return
        self._grace_s = grace_s
        given = {**os.environ, **environment}
        common = {name: value for name, value in given.items() if name not in unset}
        available = cores(os.sched_getaffinity(0))
        parts = shares(available, len(ranks)) if pin else []
        if pin and not parts:
            count = sum(len(core.cpus) for core in available)
            self._say(encoded_facts(note=f"{len(ranks)} ranks on {count} cores: not pinned"))
        for place, own in enumerate(ranks):
            cpus = parts[place].cpus if parts else []
            threads = parts[place].size if parts else max(1, len(available) // len(ranks))
            variables = {"OMP_NUM_THREADS": str(threads), **common, **own}
            self._start_rank(int(own["RANK"]), words, directory, variables, cpus)

    def _start_rank(
        self,
        number: int,
        words: list[str],
        directory: str,
        variables: dict[str, str],
        cpus: list[int],
    ) -> None:
        try:
            os.chdir(directory)
            rank = RankProcess(number, words, variables, cpus)
        except OSError as problem:
            line = f"{problem.strerror}: {problem.filename}\n".encode()
            self._say(encoded(ERR, number, line))
            self._say(encoded_facts(ended=number, code=COULD_NOT_START))
            return
        self._ranks.append(rank)
        self._running.add(rank)
        self._handlers[rank.pidfd] = lambda: self._note_end(rank)
        self._pass_on(number, OUT, rank.stdout)
        self._pass_on(number, ERR, rank.stderr)
        self._say(encoded_facts(started=number, pid=rank.pid))

    def _pass_on(self, rank: int, kind: bytes, lines: Lines) -> None:
        def read() -> None:
            if whole := lines.read():
                self._say(encoded(kind, rank, whole))
            if lines.ended:
                del self._streams[lines.fd]

        self._streams[lines.fd] = read

    def _note_end(self, rank: RankProcess) -> None:
        del self._handlers[rank.pidfd]
        self._running.discard(rank)
        self._say(encoded_facts(ended=rank.rank, code=rank.code()))

    def _end_ranks(self, number: int) -> None:
        for rank in self._running:
            rank.signal_group(number)

    def _hear_last_words(self) -> None:
        end = time.monotonic() + LAST_WORDS_S
        while self._streams and self._runner_listens and time.monotonic() < end:
            self._step(timeout_s=0.05)

    def _empty_pipes(self) -> None:
        for rank in self._ranks:
            for kind, lines in ((OUT, rank.stdout), (ERR, rank.stderr)):
                if rest := lines.read_rest():
                    self._say(encoded(kind, rank.rank, rest))
        self._streams.clear()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Agent().serve()
