"""A place where the ranks cannot meet, though MASTER_ADDR and MASTER_PORT say so.

torch waits there for half an hour, or says what the kernel said. Here it is noticed within seconds
and said in one line: a loopback address for ranks on several hosts, a port of another program.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping

from torch_ccl import launchers

#: How long rank 0 may take to come, if it is on this host after all.
PATIENCE_S = 8.0
#: How long the store of rank 0 may take to answer; it has nothing else to do.
ANSWER_S = 8.0


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def require_sense(environment: Mapping[str, str], rank: str) -> None:
    """Rank 0 serves the store and cannot know; the others wait for it, but not for ever."""
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if rank in ("", "0") or not address or not port.isdecimal():
        return
    if launchers.is_loopback(address) and _are_on_several_hosts(environment):
        _require_one_here(address, int(port))
    _require_store(address, int(port))


# ---- a loopback address for several hosts


def _are_on_several_hosts(environment: Mapping[str, str]) -> bool:
    nodes = environment.get("SLURM_STEP_NUM_NODES", "")
    place = launchers.find(environment)
    if place is not None and place.local_size is not None:
        return place.local_size < place.size
    return nodes.isdecimal() and int(nodes) > 1


def _require_one_here(address: str, port: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while not answers(address, port):
        if time.monotonic() > end:
            raise ValueError(
                f"MASTER_ADDR={address} means every host itself, but the ranks are on several "
                f"hosts, and on this one nobody answers at port {port}: "
                "set it to the name or address of the host of rank 0"
            )
        time.sleep(0.1)


# ---- a port that another program has

# What torch's TCPStore is asked and answers, in torch 2.13: a magic number, then a ping.
_VALIDATE, _PING = 0, 13
_MAGIC, _NUMBER = 0x3C85F7CE, 0x7465_7374
_QUESTION = struct.pack("<BIBI", _VALIDATE, _MAGIC, _PING, _NUMBER)
_ANSWER = struct.pack("<I", _NUMBER)


def may_be_store(address: str, port: int) -> bool:
    """Who is not there yet may come, as may the next store where one is just closing."""
    try:
        connection = socket.create_connection((address, port), timeout=1)
    except OSError:
        return True
    with connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.sendall(_QUESTION)
            return connection.recv(len(_ANSWER), socket.MSG_WAITALL) in (_ANSWER, b"")
        except TimeoutError:
            return False
        except OSError:
            return True


def _require_store(address: str, port: int) -> None:
    if not may_be_store(address, port):
        raise ValueError(
            f"another program than rank 0 answers at MASTER_ADDR={address}, "
            f"MASTER_PORT={port}: set MASTER_PORT to a port that is free there"
        )


@contextlib.contextmanager
def clear_errors(port: str) -> Iterator[None]:
    """For the making of a store; `port` says which one it is and where it comes from."""
    from torch.distributed import DistNetworkError

    try:
        yield
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise DistNetworkError(
            f"{port} is taken on {socket.gethostname()}, by another program or by another process "
            "that is rank 0: set MASTER_PORT to a port that is free"
        ) from None
