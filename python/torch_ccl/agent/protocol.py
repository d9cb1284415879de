"""The protocol between the runner and its agents, over an agent's stdin and stdout.

Runner to agent: requests, which are JSON objects, one per line. Agent to runner: MAGIC, then
frames. A frame holds whole lines of a rank's output (STDOUT, STDERR), or a message, which is a JSON
object (MESSAGE). In the order in which they are sent:

message   direction        fields                         meaning
hello     agent to runner  hello: host name               The agent runs. Rank 0's store uses the
                           port: reserved for the store   port of the first host. Other agents
                           probe, token: see `find`       connect to `probe` to find an address;
                           addresses: of this host        `addresses` are candidates for it.
find      runner to agent  addresses, port, token,        Connect to each address at `port` until
                           within_s                       one sends `token`: it belongs to rank 0's
                                                          host.
found     agent to runner  found: address                 The answer to `find`; empty if no address
                                                          answered within `within_s`.
start     runner to agent  command, directory,            Start the ranks. `ranks` has the variables
                           ranks, environment, unset,     of each rank, in order of local rank.
                           pin, grace_s                   `unset` names variables to remove.
note      agent to runner  note: text                     A line for the user.
started   agent to runner  started: rank, pid             A rank's process has started.
ended     agent to runner  ended: rank, code              It has ended: its exit code, or the
                                                          negative number of a signal. Follows all
                                                          of its output that the agent has read.
signal    runner to agent  signal: number                 Send the signal to the ranks, and SIGKILL
                                                          after `grace_s`.

The fields of `find` and `start` are in an object of that name: {"find": {"addresses": [...], ...}}.
At the end of stdin the agent kills its ranks. At the end of an agent's stdout the runner treats the
host as lost, unless all its ranks have ended.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

#: A login shell may write to stdout before it runs the agent; the decoder skips everything before.
MAGIC = b"\0torch-ccl agent\0"

STDOUT, STDERR, MESSAGE = b"o", b"e", b"m"
_HEADER = struct.Struct("!cII")


class Frame(NamedTuple):
    kind: bytes
    rank: int
    payload: bytes

    @property
    def message(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.payload)
        return decoded


def encode_frame(kind: bytes, rank: int, payload: bytes) -> bytes:
    return _HEADER.pack(kind, rank, len(payload)) + payload


def encode_message(**fields: Any) -> bytes:
    return encode_frame(MESSAGE, 0, json.dumps(fields).encode())


class FrameDecoder:
    """Reassembles frames from the data read from a pipe."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._found_magic = False

    def add(self, data: bytes) -> Iterator[Frame]:
        self._bytes += data
        if not self._found_magic:
            _, found, rest = self._bytes.partition(MAGIC)
            if not found:
                return
            self._bytes, self._found_magic = rest, True
        while len(self._bytes) >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._bytes)
            end = _HEADER.size + length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[_HEADER.size : end])
            del self._bytes[:end]
            yield Frame(kind, rank, payload)
