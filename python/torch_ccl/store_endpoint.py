"""Where rank 0 serves the TCPStore of a job, and how the other ranks connect to it.

A store identifies its job by a key, so that a rank never joins the store of another job that
happens to use the same port.
"""

import re
import secrets
import time
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from torch_ccl import rendezvous_checks
from torch_ccl.launchers import LOOPBACK, RankInfo

if TYPE_CHECKING:
    from torch.distributed import TCPStore


class StoreEndpoint(NamedTuple):
    """Port, job and candidate addresses of a store. Not every rank can reach every address."""

    port: int
    job: str  # no other job on the machine has the same
    addresses: list[str]

    def text(self) -> str:
        return ",".join([str(self.port), self.job, *self.addresses])

    @classmethod
    def parse(cls, text: str) -> "StoreEndpoint":
        """Raises ValueError."""
        port, job, *addresses = [*text.split(","), ""]
        addresses = [address for address in addresses if address]
        if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535 or not addresses:
            raise ValueError(f"rank 0 has published {text!r} as the address of its store")
        return cls(int(port), job, addresses)

    @property
    def name(self) -> str:
        return f"port {self.port} of {' or '.join(self.addresses)}"


class NotOurStoreError(Exception):
    """The port belongs to another job's store or to another program."""


_JOB_KEY = "torch-ccl/owner"  # key of the job's identity in the store
_JOB_KEY_TIMEOUT = timedelta(seconds=8)  # rank 0 sets it as soon as the store exists
_joined: set[str] = set()  # stores of earlier groups, which may still be closing


def _open_store(address: str, port: int, info: RankInfo, timeout: timedelta) -> "TCPStore":
    from torch.distributed import TCPStore

    return TCPStore(
        address,
        port,
        info.size,
        is_master=info.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
    )


def serve(port: int, job: str, info: RankInfo, timeout: timedelta) -> "TCPStore":
    """Call it on rank 0. Port 0 means any free port."""
    store = _open_store(LOOPBACK, port, info, timeout)
    store.set(_JOB_KEY, f"{job} {secrets.token_hex(8)}")
    return store


def _try_to_connect(
    address: str, endpoint: StoreEndpoint, info: RankInfo, timeout: timedelta
) -> "TCPStore | None":
    """The store; None if rank 0 does not listen yet."""
    from torch.distributed import DistNetworkError, DistStoreError

    if not rendezvous_checks.accepts_connections(address, endpoint.port):
        return None
    if not rendezvous_checks.may_be_store(address, endpoint.port):
        raise NotOurStoreError
    try:
        store = _open_store(address, endpoint.port, info, timeout)
        store.wait([_JOB_KEY], _JOB_KEY_TIMEOUT)
        identity = store.get(_JOB_KEY).decode()
    except DistNetworkError:
        return None  # the store of an earlier group is closing
    except DistStoreError:
        raise NotOurStoreError from None
    if identity.rpartition(" ")[0] != endpoint.job:
        raise NotOurStoreError
    if identity in _joined:
        return None
    _joined.add(identity)
    return store


def connect(endpoint: StoreEndpoint, info: RankInfo, timeout: timedelta) -> tuple["TCPStore", str]:
    """The store, and the address at which this rank reached it."""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        for address in endpoint.addresses:
            try:
                if store := _try_to_connect(address, endpoint, info, timeout):
                    return store, address
            except NotOurStoreError:
                # With several addresses, this one may belong to another host.
                if len(endpoint.addresses) == 1:
                    raise ValueError(
                        f"a program that is not rank 0 listens at {endpoint.name}: "
                        "set MASTER_PORT to a port that is free there"
                    ) from None
        time.sleep(0.1)
    raise TimeoutError(
        f"rank 0 did not answer at {endpoint.name} within {timeout}: it has not called "
        "init_process_group, or CCL_SOCKET_IFNAME must select another network"
    )
