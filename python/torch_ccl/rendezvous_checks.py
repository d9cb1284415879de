"""Checks of MASTER_ADDR and MASTER_PORT before torch uses them.

With a wrong address or port torch waits for half an hour, or reports a bare system error. These
checks fail within seconds, in one line: a loopback address for ranks on several hosts, or a port
that another program uses.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping

from torch_ccl import launchers

#: How long to wait for rank 0 at a loopback address: it may be on this host after all.
RANK_0_TIMEOUT_S = 8.0
#: How long to wait for a reply of rank 0's store, which replies at once.
REPLY_TIMEOUT_S = 8.0


def accepts_connections(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def validate_master(environment: Mapping[str, str], rank: str) -> None:
    """Raise ValueError if rank 0's store cannot be at MASTER_ADDR and MASTER_PORT.

    Rank 0 serves the store and has nothing to check.
    """
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if rank in ("", "0") or not address or not port.isdecimal():
        return
    if launchers.is_loopback(address) and _spans_several_hosts(environment):
        _require_rank_0_on_this_host(address, int(port))
    _require_store(address, int(port))


# ---- a loopback address for several hosts


def _spans_several_hosts(environment: Mapping[str, str]) -> bool:
    nodes = environment.get("SLURM_STEP_NUM_NODES", "")
    info = launchers.detect(environment)
    if info is not None and info.local_size is not None:
        return info.local_size < info.size
    return nodes.isdecimal() and int(nodes) > 1


def _require_rank_0_on_this_host(address: str, port: int) -> None:
    deadline = time.monotonic() + RANK_0_TIMEOUT_S
    while not accepts_connections(address, port):
        if time.monotonic() > deadline:
            raise ValueError(
                f"MASTER_ADDR={address} is a loopback address, but the ranks are on several hosts, "
                f"and no process listens at port {port} of this host: "
                "set MASTER_ADDR to the name or address of rank 0's host"
            )
        time.sleep(0.1)


# ---- a port that another program uses

# Request and reply of torch's TCPStore in torch 2.13: a magic number, then a ping.
_VALIDATE, _PING = 0, 13
_MAGIC, _NUMBER = 0x3C85F7CE, 0x7465_7374
_REQUEST = struct.pack("<BIBI", _VALIDATE, _MAGIC, _PING, _NUMBER)
_REPLY = struct.pack("<I", _NUMBER)


def may_be_store(address: str, port: int) -> bool:
    """False if a program that is not a TCPStore listens there.

    True if nothing listens yet, or if the connection closes: a store may be starting or closing.
    """
    try:
        connection = socket.create_connection((address, port), timeout=1)
    except OSError:
        return True
    with connection:
        connection.settimeout(REPLY_TIMEOUT_S)
        try:
            connection.sendall(_REQUEST)
            return connection.recv(len(_REPLY), socket.MSG_WAITALL) in (_REPLY, b"")
        except TimeoutError:
            return False
        except OSError:
            return True


def _require_store(address: str, port: int) -> None:
    if not may_be_store(address, port):
        raise ValueError(
            f"a program that is not rank 0 listens at MASTER_ADDR={address}, "
            f"MASTER_PORT={port}: set MASTER_PORT to a port that is free there"
        )


@contextlib.contextmanager
def explain_port_errors(port: str) -> Iterator[None]:
    """Explain errors while a store is created; `port` says which port it is and its origin."""
    from torch.distributed import DistNetworkError

    try:
        yield
    except DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise DistNetworkError(
            f"{port} is in use on {socket.gethostname()}, by another program or by another process "
            "that is rank 0: set MASTER_PORT to a port that is free"
        ) from None
