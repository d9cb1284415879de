"""Replies of a launcher, and addresses in its key-value space, that are not what they should be.

They end in an error that says so, whatever the bytes.
"""

import random
import socket

import pytest
from torch_ccl.pmi import KeyValueSpace, PmiError
from torch_ccl.store_endpoint import StoreEndpoint

REPLIES = [
    b"cmd=barrier_out rc=0\ncmd=get_result rc=0 value=29500,job,10.0.0.1\n",
    b"cmd=barrier_out\ncmd=get_result rc=-1\n",
    b"cmd=barrier_out rc=0\ncmd=get_result value=\n",
    b"cmd=get_result value=1\ncmd=barrier_out\n",
]
ENDPOINTS = [b"29500,4711/1,10.0.0.1,fd00::2", b"1,,::1"]
ENDS = [0, 1, 9, 10, 32, 44, 45, 61, 127, 128, 255]


def mutations(texts: list[bytes], count: int):
    generator = random.Random(7)
    for _ in range(count):
        text = bytearray(generator.choice(texts))
        for _ in range(generator.randrange(4)):
            at = generator.randrange(len(text) + 1)
            end = at + generator.randrange(6)
            value = generator.choice([*ENDS, generator.randrange(256)])
            text[at:end] = bytes([value]) * generator.randrange(3)
        yield bytes(text)


def key_value_space(reply: bytes):
    """A connected one, and the socket of its launcher, which has sent the reply and ended."""
    ours, launcher = socket.socketpair()
    launcher.sendall(reply)
    launcher.shutdown(socket.SHUT_WR)
    kvs = object.__new__(KeyValueSpace)  # without its handlers for exit and fork
    kvs._fd, kvs._received, kvs._name = ours.fileno(), b"", "kvs"
    return kvs, ours, launcher


def test_any_reply_of_a_pmi_launcher_is_a_text_or_an_error():
    results = {"text": 0, "error": 0}
    for reply in [*REPLIES, *mutations(REPLIES, 3000)]:
        kvs, ours, launcher = key_value_space(reply)
        with ours, launcher:
            try:
                assert isinstance(kvs.get("key", 10), str)
                results["text"] += 1
            except PmiError:
                results["error"] += 1
    assert min(results.values()) > 100, results


def test_a_pmi_reply_without_its_value_is_an_error():
    kvs, ours, launcher = key_value_space(b"cmd=barrier_out rc=0\ncmd=get_result rc=0\n")
    with ours, launcher, pytest.raises(PmiError, match=r"the launcher replied .* to 'get kvsname"):
        kvs.get("key", 10)


def test_any_published_address_is_an_endpoint_or_an_error():
    results = {"endpoint": 0, "error": 0}
    for text in [*ENDPOINTS, *mutations(ENDPOINTS, 3000)]:
        try:
            endpoint = StoreEndpoint.parse(text.decode(errors="replace"))
            assert endpoint.addresses
            assert 0 <= endpoint.port < 65536
            results["endpoint"] += 1
        except ValueError as error:
            assert "rank 0 has published" in str(error)
            results["error"] += 1
    assert min(results.values()) > 100, results
