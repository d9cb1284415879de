"""The protocol between the runner and its agents, over an agent's stdin and stdout.

Runner to agent: JSON objects, one per line. Agent to runner: MAGIC, then frames. A frame holds
whole lines of a rank's output, or a message (a JSON object).
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
