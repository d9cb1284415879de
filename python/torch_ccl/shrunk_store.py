"""The store of a shrunk group: torch.distributed.shrink_group() keeps that of the group.

If a rank that has died served the store (under env:// rank 0 does, unless the launcher serves it),
torch would try to connect to it until its timeout, and could make no further group. The ranks of
the shrunk group then get a new store, which their rank 0 serves.
"""

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch_ccl._C import ProcessGroupCCL

#: A host that has lost its power or its network does not answer.
ANSWER_LIMIT_S = 5.0
ADDRESS_BYTES = 256


def replace_lost_store(group: "ProcessGroupCCL", shrunk: "ProcessGroupCCL") -> None:
    """Collective over `shrunk`; called before torch reads the store of `group`."""
    c10d = dist.distributed_c10d
    process_group = _process_group_of(group)
    if process_group is None:  # the caller is not shrink_group()
        return
    name, store = c10d._world.pg_map[process_group]
    served = _innermost(store)
    if not isinstance(served, dist.TCPStore):
        return
    if not _is_true_on_all_ranks(shrunk, _answers(served)):
        c10d._world.pg_map[process_group] = (name, _new_store(shrunk, served))


def _process_group_of(backend: "ProcessGroupCCL") -> dist.ProcessGroup | None:
    for process_group in dist.distributed_c10d._world.pg_map:
        with contextlib.suppress(RuntimeError):  # it has no backend for the CPU
            if process_group._get_backend(torch.device("cpu")) is backend:
                return process_group
    return None


def _innermost(store: dist.Store) -> dist.Store:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _answers(store: dist.TCPStore) -> bool:
    """By a request: until a process that was killed has been torn down, its port accepts
    connections, and TCPStore would wait for it. In a thread: a request has no time limit."""
    answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(RuntimeError):
            store.check(["torch_ccl"])
            answered.set()

    thread = threading.Thread(target=ask, name="store check", daemon=True)
    thread.start()
    thread.join(ANSWER_LIMIT_S)
    return answered.is_set()


def _is_true_on_all_ranks(group: "ProcessGroupCCL", value: bool) -> bool:
    flag = torch.tensor([int(value)], dtype=torch.int32)
    options: Any = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MIN
    group.allreduce([flag], options).wait()
    return bool(flag.item())


def _new_store(group: "ProcessGroupCCL", lost: Any) -> dist.TCPStore:
    store, problem, address = None, None, ""
    if group.rank() == 0:
        try:
            host = _address_towards(lost.host, lost.port)
            store = dist.TCPStore(
                host, 0, is_master=True, timeout=lost.timeout, wait_for_workers=False
            )
            address = f"{host} {store.port}"
        except (OSError, RuntimeError) as error:
            problem = error
    host, _, port = _broadcast_text(group, address).partition(" ")
    if not port:
        reason = "rank 0 of the shrunk group could not replace the store, whose rank has died"
        raise RuntimeError(f"ccl: {reason}") from problem
    return store or dist.TCPStore(
        host, int(port), is_master=False, timeout=lost.timeout, wait_for_workers=False
    )


def _address_towards(host: str, port: int) -> str:
    """The address of this host on the route to the lost store: the other ranks have used that."""
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:  # connect() of UDP sends nothing
        probe.connect(address)
        return str(probe.getsockname()[0])


def _broadcast_text(group: "ProcessGroupCCL", text: str) -> str:
    buffer = torch.zeros(ADDRESS_BYTES, dtype=torch.uint8)
    encoded = torch.tensor(list(text.encode()), dtype=torch.uint8)
    buffer[: len(encoded)] = encoded
    group.broadcast([buffer], dist.BroadcastOptions()).wait()
    return bytes(buffer.tolist()).rstrip(b"\0").decode()
