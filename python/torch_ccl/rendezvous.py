"""Rendezvous of the ranks under MPI and Slurm, where nobody sets MASTER_ADDR and MASTER_PORT.

The handler of env:// below runs before torch's own. It chooses where rank 0 serves the store:

    PMI: hydra (MPICH, Intel MPI), srun --mpi=pmi2     a free port, which rank 0 publishes through
    PMIx: Open MPI, srun --mpi=pmix                    the launcher's key-value space
    Slurm without PMI                                  the step's first host, and a port derived
                                                       from job and step
    one host, any launcher                             loopback, and a port derived from the job

Where MASTER_ADDR and MASTER_PORT are set, it checks them and leaves the rest to torch.
"""

import importlib
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from torch_ccl import launchers, libtccl, pmi, pmix, rendezvous_checks, store_endpoint
from torch_ccl.launchers import LOOPBACK, RankInfo
from torch_ccl.store_endpoint import StoreEndpoint

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

#: Ports derived from a job: below the kernel's range of ephemeral ports.
DERIVED_PORTS = range(18000, 30000)

#: Variables that together identify a job on a machine.
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")


# ---- through the launcher's key-value space

KeyValueSpace = pmi.KeyValueSpace | pmix.KeyValueSpace
_FAILED = "failed:"  # published in place of an endpoint, with rank 0's error
_key_numbers = count()


def _launcher_kvs(environment: Mapping[str, str]) -> KeyValueSpace | None:
    return pmi.KeyValueSpace.of(environment) or pmix.KeyValueSpace.of(environment)


def _serve_and_publish(
    kvs: KeyValueSpace, key: str, info: RankInfo, timeout: timedelta
) -> tuple["TCPStore", str]:
    """The store listens before its port is published, so no other job can take the port."""
    port, address = os.environ.get("MASTER_PORT") or "0", os.environ.get("MASTER_ADDR")
    job = secrets.token_hex(8)
    try:
        with rendezvous_checks.explain_port_errors(f"MASTER_PORT={port}"):
            store = store_endpoint.serve(int(port), job, info, timeout)
    except Exception as error:
        kvs.put(key, _FAILED + quote(str(error)[:300]), timeout.total_seconds())
        raise
    endpoint = StoreEndpoint(store.port, job, [address] if address else _own_addresses(info))
    kvs.put(key, endpoint.text(), timeout.total_seconds())
    return store, LOOPBACK


def _rendezvous_by_kvs(
    kvs: KeyValueSpace, info: RankInfo, timeout: timedelta
) -> tuple["TCPStore", str]:
    key = f"torch-ccl-{next(_key_numbers)}"
    try:
        if info.rank == 0:
            return _serve_and_publish(kvs, key, info, timeout)
        text = kvs.get(key, timeout.total_seconds())
    except TimeoutError:
        raise TimeoutError(
            f"not all processes of the job called init_process_group within {timeout}"
        ) from None
    if text.startswith(_FAILED):
        raise RuntimeError(f"rank 0 failed: {unquote(text.removeprefix(_FAILED))}")
    return store_endpoint.connect(StoreEndpoint.parse(text), info, timeout)


def _own_addresses(info: RankInfo) -> list[str]:
    return [LOOPBACK] if info.local_size == info.size else libtccl.host_addresses()


# ---- without a key-value space


def first_host(node_list: str) -> str:
    """The first host of a Slurm node list: n1 of "n[1-3,7],m2", n08 of "n[08-10]"."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", node_list)
    return match[1] + (match[2] or "") if match else ""


def _job_id(environment: Mapping[str, str]) -> str:
    """The id of the job; empty if no variable identifies it."""
    values = [environment.get(name, "") for name in JOB_VARIABLES]
    return "/".join(values) if any(values) else ""


def port_of_job(environment: Mapping[str, str]) -> int:
    return DERIVED_PORTS[zlib.crc32(_job_id(environment).encode()) % len(DERIVED_PORTS)]


def _host_of_rank_0(environment: Mapping[str, str], info: RankInfo) -> str:
    if info.local_size == info.size:
        return LOOPBACK
    if environment.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        raise ValueError(
            "with --distribution=arbitrary the host of rank 0 is not known: "
            "set MASTER_ADDR to it, or start with --mpi=pmi2 or --mpi=pmix"
        )
    return first_host(environment.get("SLURM_STEP_NODELIST", ""))


def _derived_endpoint(environment: Mapping[str, str], info: RankInfo) -> StoreEndpoint | None:
    """The endpoint that every rank derives; None if the job or rank 0's host is not known."""
    job = _job_id(environment)
    address = environment.get("MASTER_ADDR") or _host_of_rank_0(environment, info)
    if not job or not address:
        return None
    port = int(environment.get("MASTER_PORT") or port_of_job(environment))
    return StoreEndpoint(port, job, [address])


def _rendezvous_at(
    endpoint: StoreEndpoint, info: RankInfo, timeout: timedelta
) -> tuple["TCPStore", str]:
    if info.rank != 0:
        return store_endpoint.connect(endpoint, info, timeout)
    port = f"port {endpoint.port}, which is derived from the job's number,"
    with rendezvous_checks.explain_port_errors(port):
        store = store_endpoint.serve(endpoint.port, endpoint.job, info, timeout)
    return store, endpoint.addresses[0]


# ---- the handler of env://

Rendezvous = Iterator[tuple["Store", int, int]]
Handler = Callable[..., Rendezvous]


def _with_arguments(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment, with rank and world_size of the call to init_process_group."""
    query = parse_qs(urlsplit(url).query)
    names = {"rank": "RANK", "world_size": "WORLD_SIZE"}
    return {**environment, **{names[k]: v[0] for k, v in query.items() if k in names}}


#: MASTER_ADDR and MASTER_PORT as set by the last rendezvous; not valid for the next one.
_chosen: dict[str, str] = {}


def _is_master_set_by_user(environment: Mapping[str, str]) -> bool:
    names = ("MASTER_ADDR", "MASTER_PORT")
    present = {name: environment[name] for name in names if environment.get(name)}
    return len(present) == len(names) and present != _chosen


def _remove_chosen(environment: MutableMapping[str, str]) -> None:
    for name, value in _chosen.items():
        if environment.get(name) == value:
            del environment[name]
    _chosen.clear()


def _torch_rendezvous(
    torch_handler: Handler, url: str, timeout: timedelta, **kwargs: Any
) -> Rendezvous:
    with rendezvous_checks.explain_port_errors(f"MASTER_PORT={os.environ.get('MASTER_PORT')}"):
        result = next(torch_handler(url, timeout=timeout, **kwargs))
    return iter([result])


def _rendezvous(torch_handler: Handler, url: str, timeout: timedelta, **kwargs: Any) -> Rendezvous:
    environment = os.environ
    launchers.export_rank_variables(environment)
    variables = _with_arguments(url, environment)
    launchers.validate_rank_variables(variables)
    info = launchers.detect(variables)
    if info is None or _is_master_set_by_user(environment):
        rendezvous_checks.validate_master(environment, variables.get("RANK", ""))
        return _torch_rendezvous(torch_handler, url, timeout, **kwargs)
    _remove_chosen(environment)
    if not launchers.is_set_by_launcher(info, variables):
        return torch_handler(url, timeout=timeout, **kwargs)  # its error names what is missing
    if kvs := _launcher_kvs(environment):
        store, address = _rendezvous_by_kvs(kvs, info, timeout)
    elif endpoint := _derived_endpoint(environment, info):
        store, address = _rendezvous_at(endpoint, info, timeout)
    else:
        return torch_handler(url, timeout=timeout, **kwargs)
    master = {"MASTER_ADDR": address, "MASTER_PORT": str(store.port)}
    _chosen.update({k: v for k, v in master.items() if not environment.get(k)})
    environment.update(_chosen)
    return iter([(store, info.rank, info.size)])


def install_rendezvous_handler() -> None:
    """Wrap torch's handler of env://. Safe to call twice."""
    # Not `from torch.distributed import rendezvous`: that name is a function.
    torch_rendezvous = importlib.import_module("torch.distributed.rendezvous")
    handlers: dict[str, Handler] = torch_rendezvous._rendezvous_handlers
    torch_handler = handlers.get("env")
    if torch_handler is None or getattr(torch_handler, "is_ours", False):
        return

    def handler(
        url: str, timeout: timedelta = torch_rendezvous.default_pg_timeout, **kwargs: Any
    ) -> Rendezvous:
        return _rendezvous(torch_handler, url, timeout, **kwargs)

    handler.is_ours = True  # type: ignore[attr-defined]
    handlers["env"] = handler
