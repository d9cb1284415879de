"""The agent of one host (torch_ccl/agent), as the runner sees it."""

import json
import os
import select
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_ccl import launchers, libtccl
from torch_ccl.agent.protocol import FrameDecoder

AGENT = Path(__file__).parent.parent / "agent"
CLOSE_TIMEOUT_S = 10.0  # for processes that the kernel does not end
READ_BYTES = 1 << 16


def is_this_host(host: str) -> bool:
    """Packets to an address of this host have that address as their source."""
    if launchers.is_loopback(host):
        return True
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, 9, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                if launchers.is_loopback(str(address[0])) or probe.getsockname()[0] == address[0]:
                    return True
    return False


def addresses_of(host: str) -> list[str]:
    """Addresses to which the name resolves here, without loopback addresses."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = [str(row[4][0]) for row in found]
    return [address for address in addresses if not launchers.is_loopback(address)]


def own_addresses() -> list[str]:
    try:
        return libtccl.host_addresses()
    except (libtccl.Error, libtccl.LoadError):  # no usable interface; the ranks report the other
        return []


class HostAgent:
    """A child of this process on this host; on other hosts started through ssh or --rsh."""

    def __init__(self, host: str, ranks: list[int], rsh: list[str]):
        self.host = host
        self.ranks = ranks
        self.is_local = is_this_host(host)
        self.running = set(ranks)
        self.hello: dict[str, Any] = {}
        self.store_address: str | None = None  # at which this host reaches the store on rank 0
        self.decoder = FrameDecoder()
        self._rsh = rsh
        self.errors = b""  # stderr of ssh or the agent that has not been written yet
        self.process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # this process receives Ctrl-C and forwards it
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.stderr = self.process.stderr

    def _command(self) -> list[str]:
        command = [sys.executable, "-I", "-S", str(AGENT)]
        if self.is_local:
            return command
        # Python itself may need it to start; all other variables go through the agent's stdin.
        library_path = os.environ.get("LD_LIBRARY_PATH")
        setting = ["env", f"LD_LIBRARY_PATH={library_path}"] if library_path else []
        return [*self._rsh, self.host, shlex.join([*setting, *command])]

    @property
    def advice(self) -> str:
        """What to check if the host does not answer: ssh, or Python on that host."""
        if self.is_local:
            return ""
        test = shlex.join([*self._rsh, self.host, shlex.join([sys.executable, "-V"])])
        return f"; check --hosts, and that this works without a password: {test}"

    @property
    def name(self) -> str:
        name: str = self.hello.get("hello", self.host)
        return name

    def send(self, **request: Any) -> None:
        data = memoryview(json.dumps(request).encode() + b"\n")
        with suppress(OSError):  # the agent is gone; its stdout tells
            while data:
                data = data[os.write(self.stdin.fileno(), data) :]

    def last_error_line(self, within_s: float) -> str:
        """The last line of stderr, which may arrive after the end of stdout."""
        deadline = time.monotonic() + within_s
        while select.select([self.stderr], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (data := self.stderr.read(READ_BYTES)):
                break
            self.errors += data
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def disconnect(self) -> None:
        """When its stdin closes, the agent kills its ranks and ends."""
        with suppress(OSError):
            self.stdin.close()

    def close(self) -> None:
        try:
            self.process.wait(CLOSE_TIMEOUT_S if self.hello else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()
        self.stderr.close()
