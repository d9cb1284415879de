"""The agent of a host (`torch_ccl/agent`), as the runner sees it."""

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

from torch_ccl import launchers
from torch_ccl.agent.frames import Frames

AGENT = Path(__file__).parent.parent / "agent"
GIVE_UP_S = 10.0  # for processes which the kernel does not end
PIECE = 1 << 16


def is_here(host: str) -> bool:
    """Packets to an own address come from it."""
    if launchers.is_loopback(host):
        return True
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, 9, type=socket.SOCK_DGRAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                if launchers.is_loopback(address[0]) or probe.getsockname()[0] == address[0]:
                    return True
    return False


def addresses_of(host: str) -> list[str]:
    """By which this process would reach it, without those that mean every host itself."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [a for *_, (a, *_) in found if not launchers.is_loopback(a)]


def own_addresses() -> list[str]:
    from torch_ccl import _C

    try:
        return _C.addresses_of_this_host()
    except (RuntimeError, ValueError):  # there is none
        return []


class HostAgent:
    """Here a child of this process, elsewhere by ssh or what stands for it."""

    def __init__(self, host: str, ranks: list[int], rsh: list[str]):
        self.host = host
        self.ranks = ranks
        self.here = is_here(host)
        self.running = set(ranks)
        self.hello: dict = {}
        self.master: str | None = None
        self.frames = Frames()
        self._rsh = rsh
        self.errors = b""  # what ssh or the agent itself says, as far as it has not been shown
        self.process = subprocess.Popen(
            self._words(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for this process, which passes it on
        )

    def _words(self) -> list[str]:
        words = [sys.executable, "-I", "-S", str(AGENT)]
        if self.here:
            return words
        # Python itself may need it to start; all else goes through the agent's stdin.
        libraries = os.environ.get("LD_LIBRARY_PATH")
        setting = ["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []
        return [*self._rsh, self.host, shlex.join([*setting, *words])]

    @property
    def advice(self) -> str:
        """What to look at if it does not answer; it may be ssh, or Python on that host."""
        if self.here:
            return ""
        trial = shlex.join([*self._rsh, self.host, shlex.join([sys.executable, "-V"])])
        return f"; check --hosts, and that this works without a password: {trial}"

    @property
    def name(self) -> str:
        return self.hello.get("hello", self.host)

    def tell(self, **request) -> None:
        message = memoryview(json.dumps(request).encode() + b"\n")
        with suppress(OSError):  # it is gone, which is seen elsewhere
            while message:
                message = message[os.write(self.process.stdin.fileno(), message) :]

    def read_errors(self, within_s: float) -> str:
        """The last line of them; it may come after the end of stdout."""
        end = time.monotonic() + within_s
        stream = self.process.stderr
        while select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (piece := stream.read(PIECE)):
                break
            self.errors += piece
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def hang_up(self) -> None:
        """When it can no longer hear us, it kills its ranks and ends."""
        with suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        try:
            self.process.wait(GIVE_UP_S if self.hello else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
