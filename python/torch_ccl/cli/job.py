"""What `torch-ccl run` runs, and where the ranks' output goes."""

import os
import select
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from torch_ccl.exit_status import StderrTail


@dataclass(frozen=True)
class Job:
    command: list[str]  # of every rank
    hosts: dict[str, list[int]]  # the ranks on each host
    rsh: list[str] = field(default_factory=list)  # runs a command on another host
    environment: dict[str, str] = field(default_factory=dict)  # added for ranks on this host
    remote_environment: dict[str, str] = field(default_factory=dict)  # for ranks on other hosts
    pin: bool = True

    @property
    def size(self) -> int:
        return sum(map(len, self.hosts.values()))

    @property
    def ranks(self) -> list[int]:
        return [rank for ranks in self.hosts.values() for rank in ranks]


class Output(Protocol):
    """Receives whole lines; stream is 1 (stdout) or 2 (stderr)."""

    def write(self, stream: int, prefix: str, lines: bytes) -> None: ...


class Terminal:
    """This process's stdout and stderr, unbuffered."""

    def write(self, stream: int, prefix: str, lines: bytes) -> None:
        begin = prefix.encode()
        text = memoryview(begin + lines[:-1].replace(b"\n", b"\n" + begin) + b"\n")
        while text:
            try:
                text = text[os.write(stream, text) :]
            except BlockingIOError:  # the stream may be non-blocking
                select.select([], [stream], [])


class JobOutput:
    """Writes the ranks' lines with their rank, and keeps the last stderr lines of each rank."""

    def __init__(self, output: Output, ranks: Iterable[int]):
        self._output = output
        self.tails = {rank: StderrTail() for rank in ranks}
        #: The rank whose last error is the last thing written.
        self._last_error: StderrTail | None = None

    def write(self, stream: int, prefix: str, lines: bytes) -> None:
        self._last_error = None
        self._output.write(stream, prefix, lines)

    def write_line(self, line: str) -> None:
        self.write(2, "torch-ccl run: ", line.encode() + b"\n")

    def write_stdout(self, rank: int, lines: bytes) -> None:
        self.write(1, f"[{rank}] ", lines)

    def write_stderr(self, rank: int, lines: bytes) -> None:
        tail = self.tails[rank]
        continues = self._last_error is tail
        begins = tail.add(lines)
        self.write(2, f"[{rank}] ", lines)
        if begins or continues:
            self._last_error = tail

    def repeat_last_error(self, rank: int) -> None:
        """Write the rank's last error again, unless it is the last thing written."""
        tail = self.tails[rank]
        if tail is not self._last_error and (error := tail.last_error()):
            self.write(2, f"[{rank}] ", error)
