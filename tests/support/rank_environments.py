"""The host and the environment of each rank on virtual hosts, as a launcher sets them.

    for host, environment in rank_environments(hosts, [2, 1]):
        host.start([sys.executable, "rank.py"], env=environment)

A layout is the number of ranks on each host. Ranks of one host are consecutive.
"""

import os
from collections.abc import Iterator

from support.virtual_hosts import Host

PORT = 29500

# Variables of the launcher that started this process are not passed on.
FOREIGN = ("PMI_RANK", "PMI_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def rank_environments(
    hosts: list[Host], layout: list[int], port: int = PORT, **more: str
) -> Iterator[tuple[Host, dict[str, str]]]:
    """Yields the host and the environment of every rank; the store is on the first host."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    common = {
        "WORLD_SIZE": str(sum(layout)),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",  # else Gloo takes the address that the host name resolves to
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns about addresses without a name
    }
    rank = 0
    for host, count in zip(hosts, layout, strict=True):
        for local_rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
            yield host, {**kept, **common, **own, **more}
            rank += 1
