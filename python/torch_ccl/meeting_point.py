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
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from itertools import count
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from torch_ccl import launchers, pmi, pmix, said_point
from torch_ccl.launchers import LOOPBACK

#: Ports that follow from a job: below those that the kernel gives to whoever asks for any.
PORTS = range(18000, 30000)

#: Variables that tell one job of a machine from another.
JOB_NAMES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")


# ---- the store at a point


class Point(NamedTuple):
    """Where rank 0 serves the store: at the first address that leads to it."""

    port: int
    owner: str  # what the store says of itself, other than those of other jobs
    addresses: list[str]

    def text(self) -> str:
        return ",".join([str(self.port), self.owner, *self.addresses])

    @classmethod
    def parse(cls, text: str) -> "Point":
        port, owner, *addresses = text.split(",")
        return cls(int(port), owner, addresses)

    @property
    def name(self) -> str:
        return f"port {self.port} of {' or '.join(self.addresses)}"


class IsForeign(Exception):
    """A store or another program that is not of this job."""


_OWNER = "torch-ccl/owner"  # the key that says whose a store is
_OWNER_S = timedelta(seconds=8)  # rank 0 sets it as soon as the store is there
_joined: set[str] = set()  # stores of groups before: theirs may still be about to close


def _store(address: str, port: int, place: launchers.Place, timeout: timedelta):
    from torch.distributed import TCPStore

    return TCPStore(
        address,
        port,
        place.size,
        is_master=place.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
    )


def _serve(port: int, owner: str, place: launchers.Place, timeout: timedelta):
    store = _store(LOOPBACK, port, place, timeout)
    store.set(_OWNER, f"{owner} {secrets.token_hex(8)}")
    return store


def _try_to_join(address: str, point: Point, place: launchers.Place, timeout: timedelta):
    """None if rank 0 is not there yet."""
    from torch.distributed import DistNetworkError, DistStoreError

    if not said_point.answers(address, point.port):
        return None
    if not said_point.may_be_store(address, point.port):
        raise IsForeign
    try:
        store = _store(address, point.port, place, timeout)
        store.wait([_OWNER], _OWNER_S)
        said = store.get(_OWNER).decode()
    except DistNetworkError:
        return None  # an older one that is just closing
    except DistStoreError:
        raise IsForeign from None
    if said.rpartition(" ")[0] != point.owner:
        raise IsForeign
    if said in _joined:
        return None
    _joined.add(said)
    return store


def _join(point: Point, place: launchers.Place, timeout: timedelta):
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        for address in point.addresses:
            try:
                if store := _try_to_join(address, point, place, timeout):
                    return store, address
            except IsForeign:
                if len(point.addresses) == 1:  # else that of another host may be the right one
                    raise ValueError(
                        f"another program than rank 0 answers at {point.name}: "
                        "set MASTER_PORT to a port that is free there"
                    ) from None
        time.sleep(0.1)
    raise TimeoutError(
        f"rank 0 does not answer at {point.name} within {timeout}: it has not called "
        "init_process_group, or CCL_SOCKET_IFNAME should choose another network"
    )


# ---- agreeing through the launcher's key space

KeySpace = pmi.KeySpace | pmix.KeySpace
_FAILED = "failed:"  # in place of a point: why there is none
_keys = count()


def _key_space(environment: Mapping[str, str]) -> KeySpace | None:
    return pmi.KeySpace.of(environment) or pmix.KeySpace.of(environment)


def _serve_by_keys(keys: KeySpace, key: str, place: launchers.Place, timeout: timedelta):
    """The store is there before it is said where: no other job can take the port meanwhile."""
    port, address = os.environ.get("MASTER_PORT") or "0", os.environ.get("MASTER_ADDR")
    owner = secrets.token_hex(8)
    try:
        with said_point.clear_errors(f"MASTER_PORT={port}"):
            store = _serve(int(port), owner, place, timeout)
    except Exception as error:
        keys.publish(key, _FAILED + quote(str(error)[:300]), timeout.total_seconds())
        raise
    point = Point(store.port, owner, [address] if address else _own(place))
    keys.publish(key, point.text(), timeout.total_seconds())
    return store, LOOPBACK


def _meet_by_keys(keys: KeySpace, place: launchers.Place, timeout: timedelta):
    key = f"torch-ccl-{next(_keys)}"
    try:
        if place.rank == 0:
            return _serve_by_keys(keys, key, place, timeout)
        text = keys.read(key, timeout.total_seconds())
    except TimeoutError:
        raise TimeoutError(
            f"not all processes of the job have called init_process_group within {timeout}"
        ) from None
    if text.startswith(_FAILED):
        raise RuntimeError(f"rank 0 has failed: {unquote(text.removeprefix(_FAILED))}")
    return _join(Point.parse(text), place, timeout)


def _own(place: launchers.Place) -> list[str]:
    from torch_ccl import _C

    return [LOOPBACK] if place.local_size == place.size else _C.addresses_of_this_host()


# ---- without a key space


def first_host(node_list: str) -> str:
    """Of a list as Slurm writes it: n1 of "n[1-3,7],m2", n08 of "n[08-10]"."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", node_list)
    return match[1] + (match[2] or "") if match else ""


def _job(environment: Mapping[str, str]) -> str:
    """Empty if nothing tells this job from others."""
    names = [environment.get(name, "") for name in JOB_NAMES]
    return "/".join(names) if any(names) else ""


def port_of_job(environment: Mapping[str, str]) -> int:
    return PORTS[zlib.crc32(_job(environment).encode()) % len(PORTS)]


def _host_of_rank_0(environment: Mapping[str, str], place: launchers.Place) -> str:
    if place.local_size == place.size:
        return LOOPBACK
    if environment.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        raise ValueError(
            "--distribution=arbitrary hides on which host rank 0 is: "
            "set MASTER_ADDR to it, or start with --mpi=pmi2 or --mpi=pmix"
        )
    return first_host(environment.get("SLURM_STEP_NODELIST", ""))


def _derived_point(environment: Mapping[str, str], place: launchers.Place) -> Point | None:
    """None if the launcher's variables do not say enough."""
    job = _job(environment)
    address = environment.get("MASTER_ADDR") or _host_of_rank_0(environment, place)
    if not job or not address:
        return None
    port = int(environment.get("MASTER_PORT") or port_of_job(environment))
    return Point(port, job, [address])


def _meet_at(point: Point, place: launchers.Place, timeout: timedelta):
    if place.rank != 0:
        return _join(point, place, timeout)
    with said_point.clear_errors(f"port {point.port}, which follows from the number of the job,"):
        store = _serve(point.port, point.owner, place, timeout)
    return store, point.addresses[0]


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


def _by_torch(
    by_torch: Callable[..., Iterator], url: str, timeout: timedelta, **kwargs
) -> Iterator:
    with said_point.clear_errors(f"MASTER_PORT={os.environ.get('MASTER_PORT')}"):
        found = next(by_torch(url, timeout=timeout, **kwargs))
    return iter([found])


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
        return _by_torch(by_torch, url, timeout, **kwargs)
    _forget_agreed(environment)
    if not launchers.is_said_by_launcher(place, told):
        return by_torch(url, timeout=timeout, **kwargs)  # which says what is missing
    if keys := _key_space(environment):
        store, address = _meet_by_keys(keys, place, timeout)
    elif point := _derived_point(environment, place):
        store, address = _meet_at(point, place, timeout)
    else:
        return by_torch(url, timeout=timeout, **kwargs)
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
