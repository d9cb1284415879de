"""What the runner and its agents say to each other, over the agent's stdin and stdout.

The runner says JSON objects, one per line. The agent says MAGIC, then frames: whole lines that a
rank has written, or a JSON object.
"""

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple

#: A shell may greet on stdout before it runs the agent; what comes before this is not ours.
MAGIC = b"\0torch-ccl agent\0"

OUT, ERR, FACTS = b"o", b"e", b"f"
_HEADER = struct.Struct("!cII")


class Frame(NamedTuple):
    kind: bytes
    rank: int
    payload: bytes

    @property
    def facts(self) -> dict:
        return json.loads(self.payload)


def encoded(kind: bytes, rank: int, payload: bytes) -> bytes:
    return _HEADER.pack(kind, rank, len(payload)) + payload


def encoded_facts(**facts) -> bytes:
    return encoded(FACTS, 0, json.dumps(facts).encode())


class Frames:
    """Puts frames together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._began = False

    def add(self, piece: bytes) -> Iterator[Frame]:
        self._bytes += piece
        if not self._began:
            _, found, behind = self._bytes.partition(MAGIC)
            if not found:
                return
            self._bytes, self._began = behind, True
        while len(self._bytes) >= _HEADER.size:
            kind, rank, length = _HEADER.unpack_from(self._bytes)
            end = _HEADER.size + length
            if len(self._bytes) < end:
                return
            payload = bytes(self._bytes[_HEADER.size : end])
            del self._bytes[:end]
            yield Frame(kind, rank, payload)
