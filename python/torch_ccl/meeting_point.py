"""Where the ranks of a job meet, if nobody has said it.

torch asks for MASTER_ADDR and MASTER_PORT. Under MPI or Slurm nobody sets them; there the ranks
agree through the launcher:

    PMI: hydra (MPICH, Intel MPI), srun --mpi=pmi2      rank 0 opens a store at a free port and says
    PMIx: Open MPI, srun --mpi=pmix                     where in the launcher's key space
    Slurm without a key space                           the step's first host, and a port that
                                                        follows from job and step
    one host, any launcher                              loopback, and a port that follows from
                                                        the job
"""

import importlib
import os
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from itertools import count
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from torch_ccl import launchers, pmi, pmix, said_point

#: Ports that follow from a job: below those that the kernel gives to whoever asks for any.
PORTS = range(18000, 30000)

#: Variables that tell one job of a machine from another.
JOB_NAMES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")

LOOPBACK = "127.0.0.1"


# ---- agreeing through the launcher's key space


class Point(NamedTuple):
    """Where the store is; the first address that answers is used."""

    port: int
    addresses: list[str]

    def text(self) -> str:
        return ",".join([str(self.port), *self.addresses])

    @classmethod
    def parse(cls, text: str) -> "Point":
        port, *addresses = text.split(",")
        return cls(int(port), addresses)


_meetings = count()

KeySpace = pmi.KeySpace | pmix.KeySpace


def _key_space(environment: Mapping[str, str], place: launchers.Place) -> KeySpace | None:
    """The launcher's, if it is the launcher who says that this is our place."""
    said_by = (launchers.place_by(row, environment) for row in launchers.LAUNCHERS[1:])
    if not any(map(place.is_same, said_by)):
        return None
    if keys := pmi.KeySpace.of(environment):
        return keys
    return pmix.KeySpace.of(environment)


def _meet_by_keys(
    keys: KeySpace, place: launchers.Place, environment: Mapping[str, str], timeout: timedelta
):
    """Rank 0 serves the store before it says where: no other job can take the port meanwhile."""
    from torch.distributed import TCPStore

    def store_at(address: str, port: int) -> TCPStore:
        return TCPStore(
            address,
            port,
            place.size,
            is_master=place.rank == 0,
            timeout=timeout,
            wait_for_workers=False,
        )

    key = f"torch-ccl-{next(_meetings)}"
    deadline = time.monotonic() + timeout.total_seconds()
    try:
        if place.rank == 0:
            store = store_at(LOOPBACK, int(environment.get("MASTER_PORT") or 0))
            said = environment.get("MASTER_ADDR")
            point = Point(store.port, [said] if said else _own(place))
            keys.publish(key, point.text(), timeout.total_seconds())
            return store, LOOPBACK
        point = Point.parse(keys.read(key, timeout.total_seconds()))
    except TimeoutError:
        raise TimeoutError(
            f"not all processes of the job have called init_process_group within {timeout}"
        ) from None
    address = _first_that_answers(point, deadline)
    return store_at(address, point.port), address


def _own(place: launchers.Place) -> list[str]:
    from torch_ccl import _C

    return [LOOPBACK] if place.local_size == place.size else _C.addresses_of_this_host()


def _first_that_answers(point: Point, deadline: float) -> str:
    if len(point.addresses) == 1:
        return point.addresses[0]
    while True:
        for address in point.addresses:
            if said_point.answers(address, point.port):
                return address
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"rank 0 does not answer at port {point.port} of {', '.join(point.addresses)}: "
                "CCL_SOCKET_IFNAME chooses the network"
            )
        time.sleep(0.1)


# ---- without a key space


def first_host(node_list: str) -> str:
    """Of a list as Slurm writes it: n1 of "n[1-3,7],m2", n08 of "n[08-10]"."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", node_list)
    return match[1] + (match[2] or "") if match else ""


def port_of_job(environment: Mapping[str, str]) -> int:
    job = "/".join(environment.get(name, "") for name in JOB_NAMES)
    return PORTS[zlib.crc32(job.encode()) % len(PORTS)]


def _choose_point(environment: MutableMapping[str, str], place: launchers.Place) -> None:
    """Sets MASTER_ADDR and MASTER_PORT if the launcher's variables say enough."""
    if not any(environment.get(name) for name in JOB_NAMES):
        return  # torch says what is missing
    if place.local_size == place.size:
        address = LOOPBACK
    else:
        address = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    if not address:
        return
    environment.setdefault("MASTER_ADDR", address)
    if "MASTER_PORT" in environment:
        return
    port = port_of_job(environment)
    if place.rank == 0 and not _is_free(port):
        raise OSError(
            f"port {port}, which follows from the number of the job, is taken on "
            f"{socket.gethostname()}: set MASTER_PORT to another one"
        )
    environment["MASTER_PORT"] = str(port)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


# ---- what torch calls


def _told(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, and what the call of init_process_group says instead."""
    query = parse_qs(urlsplit(url).query)
    names = {"rank": "RANK", "world_size": "WORLD_SIZE"}
    return {**environment, **{names[k]: v[0] for k, v in query.items() if k in names}}


_agreed: dict[str, str] = {}


def _is_said(environment: Mapping[str, str]) -> bool:
    """By somebody else than us: what we have agreed on holds for one meeting only."""
    names = ("MASTER_ADDR", "MASTER_PORT")
    said = {name: environment[name] for name in names if environment.get(name)}
    return len(said) == len(names) and said != _agreed


def _forget_agreed(environment: MutableMapping[str, str]) -> None:
    for name, value in _agreed.items():
        if environment.get(name) == value:
            del environment[name]
    _agreed.clear()


def _rendezvous(
    by_torch: Callable[..., Iterator], url: str, timeout: timedelta, **kwargs
) -> Iterator:
    environment = os.environ
    launchers.complete(environment)
    told = _told(url, environment)
    launchers.require_sense(told)
    place = launchers.find(told)
    if place is None or _is_said(environment):
        said_point.require_sense(environment, told.get("RANK", ""))
        return said_point.with_clear_errors(environment, by_torch(url, timeout=timeout, **kwargs))
    _forget_agreed(environment)
    keys = _key_space(environment, place)
    if keys is None:
        _choose_point(environment, place)
        return by_torch(url, timeout=timeout, **kwargs)
    store, address = _meet_by_keys(keys, place, environment, timeout)
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(store.port)}
    _agreed.update({k: v for k, v in found.items() if not environment.get(k)})
    environment.update(_agreed)
    return iter([(store, place.rank, place.size)])


def watch_rendezvous() -> None:
    """Stand before torch's own handler of env://, which still does the rest."""
    # Not by `from torch.distributed import`: there the name is a function.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Callable[..., Iterator]] = rendezvous._rendezvous_handlers
    by_torch = handlers.get("env")
    if by_torch is None or getattr(by_torch, "is_ours", False):
        return

    def find_the_others_first(
        url: str, timeout: timedelta = rendezvous.default_pg_timeout, **kwargs
    ) -> Iterator:
        return _rendezvous(by_torch, url, timeout, **kwargs)

    find_the_others_first.is_ours = True
    handlers["env"] = find_the_others_first
