"""Rendezvous between hosts: names, addresses, interfaces, ports, secrets."""

import contextlib
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from support.function_ranks import run_on_hosts, started_on_hosts
from support.host_conformance import conformance, run_conformance
from support.virtual_hosts import Host, virtual_hosts

MIB = 1 << 20
LISTENS = "0A"  # a state in /proc/net/tcp
STORE_PORT = 29500


@pytest.fixture(scope="module")
def hosts():
    """Hosts with two networks; the second is used only on request. Tests must not change them."""
    with virtual_hosts(3, networks=2, families=(4, 6)) as hosts:
        yield hosts


def add_up(rank: int, size: int, mebibytes: int = 1) -> None:
    import torch
    import torch.distributed as dist

    x = torch.full((mebibytes * MIB // 4,), float(rank + 1))
    dist.all_reduce(x)
    assert (x == size * (size + 1) / 2).all()


@contextlib.contextmanager
def counted(hosts: list[Host], *devices: str):
    """The bytes that all hosts send inside of the block, by device."""
    sent: dict[str, int] = {}
    before = {device: sum(host.sent_bytes(device) for host in hosts) for device in devices}
    yield sent
    for device in devices:
        sent[device] = sum(host.sent_bytes(device) for host in hosts) - before[device]


# ---- detection of ranks on the same host


def test_the_same_host_name_twice():
    with (
        virtual_hosts(2, names=["same", "same"]) as hosts,
        counted(hosts, "eth0") as sent,
    ):
        run_on_hosts(hosts, [2, 2], add_up)
    assert sent["eth0"] > 2 * MIB


def test_the_same_boot_id_and_host_name_in_two_networks(hosts):
    """They are two hosts: the program enters only the network namespaces."""
    with counted(hosts[:2], "eth0") as sent:
        conformance(hosts[:2], [0, 0, 1, 1], 20, "--ops", "allreduce", "--limit-bytes", 65536)
    assert sent["eth0"] > 10_000


def test_containers_in_one_network_are_one_host():
    """Their host names, boot_ids and /dev/shm do not matter."""
    with virtual_hosts(1) as hosts:
        both = [hosts[0], hosts[0].container("inner")]
        assert len({host.run("hostname") for host in both}) == 2
        assert len({host.run("cat", "/proc/sys/kernel/random/boot_id") for host in both}) == 2
        with counted(hosts, "eth0", "lo") as sent:
            run_on_hosts(both, [1, 1], add_up, 16)
    assert sum(sent.values()) < 100_000, sent  # the store's


# ---- names


def with_debian_names(hosts: list[Host], families: tuple[int, ...] = (4,)) -> None:
    """A host's own name resolves to 127.0.1.1, as Debian's installer writes it."""
    for host in hosts:
        others = [other for other in hosts if other is not host]
        lines = [f"{other.address_in(0, v)} {other.name}" for other in others for v in families]
        host.set_names(f"127.0.1.1 {host.name}", *lines)


@pytest.mark.parametrize("master", ["h1", "10.77.0.1"])
def test_name_that_resolves_to_loopback(master):
    with virtual_hosts(2) as hosts:
        with_debian_names(hosts)
        assert hosts[0].run("getent", "hosts", "h1").split()[0] == "127.0.1.1"
        run_on_hosts(hosts, [1, 1], add_up, MASTER_ADDR=master)


# ---- interfaces


def add_bridge(host: Host) -> None:
    """Adds a bridge that is up, has a carrier and has the same address on every host."""
    host_ip(host, "link", "add", "docker0", "type", "bridge")
    host_ip(host, "addr", "add", "172.17.0.1/16", "dev", "docker0")
    host_ip(host, "link", "set", "docker0", "up")


def add_cable_that_is_loose(host: Host) -> None:
    host_ip(host, "link", "add", "aaa0", "type", "veth", "peer", "name", "aaa1")
    host_ip(host, "addr", "add", "10.99.0.1/24", "dev", "aaa0")
    host_ip(host, "link", "set", "aaa0", "up")


def add_interface_that_is_down(host: Host) -> None:
    add_cable_that_is_loose(host)
    host_ip(host, "link", "set", "aaa0", "down")


def host_ip(host: Host, *words: str) -> None:
    subprocess.run(["ip", "-n", host.namespace, *words], check=True, timeout=30)


@pytest.mark.parametrize("extra", [add_interface_that_is_down, add_cable_that_is_loose])
def test_first_interface_is_down(extra):
    with virtual_hosts(2, before_connect=extra) as hosts:
        addresses = hosts[0].run("ip", "-o", "-4", "addr").splitlines()
        assert "eth0" in addresses[-1] and len(addresses) == 3
        conformance(hosts, [0, 1], 20)


# MASTER_ADDR values by which the host of the store can find its interface.
HINTS = [
    "its address",
    "a default route",
    "none",
]


@pytest.mark.parametrize("hint", HINTS)
def test_first_interface_is_not_connected(hint):
    with virtual_hosts(2, before_connect=add_bridge) as hosts:
        with_debian_names(hosts)
        if hint == "a default route":
            for host in hosts:
                host_ip(host, "route", "add", "default", "via", "10.77.0.254", "dev", "eth0")
        master = hosts[0].address if hint == "its address" else "h1"
        run_on_hosts(hosts, [1, 1], add_up, MASTER_ADDR=master)


CHOICES = [
    ("", "eth0"),
    ("eth", "eth0"),
    ("eth1", "eth1"),
    ("ib,eth1,eth0", "eth1"),
    ("^eth0,lo", "eth1"),
    ("eth,^eth0", "eth1"),
    ("^docker", "eth0"),
]


@pytest.mark.parametrize(("setting", "device"), CHOICES)
def test_chosen_interface(hosts, setting, device):
    large = ["--ops", "allreduce", "--limit-bytes", 300_000, "--large-one-in", 1]
    with counted(hosts[:2], "eth0", "eth1") as sent:
        conformance(hosts[:2], [0, 1], 6, *large, "--set", f"CCL_SOCKET_IFNAME={setting}")
    total = sum(sent.values())
    assert total > MIB and sent[device] > 0.99 * total, sent


def test_interface_of_the_store_is_used(hosts):
    with counted(hosts[:2], "eth0", "eth1") as sent:
        run_on_hosts(hosts[:2], [1, 1], add_up, MASTER_ADDR=hosts[0].address_in(1))
    assert sent["eth0"] < 100_000 < MIB < sent["eth1"], sent


def test_no_matching_interface(hosts):
    finished = run_conformance(hosts[:2], [0, 1], 1, "--set", "CCL_SOCKET_IFNAME=ib")
    assert finished.returncode != 0
    assert 'CCL_SOCKET_IFNAME="ib": no matching interface is up' in finished.output
    assert "eth0 10.77.0.1" in finished.output and "eth1 10.77.1.1" in finished.output


# ---- families of addresses


def test_ipv6_alone():
    with virtual_hosts(2, families=(6,)) as hosts:
        conformance(hosts, [0, 0, 1, 1], 50)
        for master in (hosts[0].address6, "h1"):
            run_on_hosts(hosts, [1, 1], add_up, MASTER_ADDR=master)


@pytest.mark.parametrize("master", ["10.77.0.1", "fd77:0::1", "h1"])
def test_ipv4_and_ipv6(hosts, master):
    run_on_hosts(hosts[:2], [1, 1], add_up, MASTER_ADDR=master)


@pytest.mark.parametrize("master", ["fd77:0::1", "h1"])
def test_one_host_has_ipv6_alone(master):
    with virtual_hosts(2, families=(4, 6)) as hosts:
        host_ip(hosts[1], "addr", "del", f"{hosts[1].address}/24", "dev", "eth0")
        run_on_hosts(hosts, [1, 1], add_up, MASTER_ADDR=master)


def test_one_host_has_ipv6_alone_and_the_store_has_no_address():
    with virtual_hosts(2, families=(4, 6)) as hosts:
        host_ip(hosts[1], "addr", "del", f"{hosts[1].address}/24", "dev", "eth0")
        conformance(hosts, [0, 1], 10)


def test_name_that_resolves_to_loopback_here_and_ipv6_elsewhere():
    """The store's name does not tell the first host that the others use IPv6."""
    with virtual_hosts(2, families=(4, 6)) as hosts:
        with_debian_names(hosts, (4, 6))
        run_on_hosts(hosts, [1, 1], add_up, MASTER_ADDR="h1")


# ---- ports


def listening_ports() -> set[int]:
    """Listening ports on this host, except the store's."""
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == LISTENS:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports - {STORE_PORT}


def listen_while_adding_up(rank: int, size: int) -> set[int]:
    import torch.distributed as dist

    add_up(rank, size)
    ports = listening_ports()
    dist.barrier()
    return ports


@pytest.mark.parametrize("family", [4, 6])
def test_range_of_ports(hosts, family):
    master = hosts[0].address_in(0, family)
    everyone = run_on_hosts(
        hosts[:2],
        [2, 2],
        listen_while_adding_up,
        MASTER_ADDR=master,
        CCL_PORT_RANGE="20000-20003",
    )
    assert everyone == [{20000, 20001, 20002, 20003}] * 4


def test_a_range_with_too_few_ports(hosts):
    begin = time.monotonic()
    finished = run_conformance(hosts[:2], [0, 0, 1, 1], 1, "--set", "CCL_PORT_RANGE=20000-20002")
    assert finished.returncode != 0
    reason = "CCL_PORT_RANGE: no port from 20000 to 20002 is free"
    assert finished.output.count(reason) == 4, finished.output  # on every rank
    assert time.monotonic() - begin < 20


# ---- secrets


def write_secrets(hosts: list[Host], secrets: list[str]) -> str:
    """Writes the secrets to the same path on all hosts."""
    for host, secret in zip(hosts, secrets, strict=True):
        host.run("sh", "-c", f"umask 077; echo {secret} > /dev/shm/secret")
    return "/dev/shm/secret"


def test_a_secret_from_a_file(hosts):
    path = write_secrets(hosts[:2], ["abc", "abc"])
    run_on_hosts(hosts[:2], [2, 2], add_up, CCL_SECRET_FILE=path)


def test_secrets_that_differ(hosts):
    path = write_secrets(hosts[:2], ["abc", "xyz"])
    begin = time.monotonic()
    with started_on_hosts(
        hosts[:2],
        [1, 1],
        add_up,
        group={"timeout": timedelta(seconds=4)},
        CCL_SECRET_FILE=path,
    ) as ranks:
        pass
    assert time.monotonic() - begin < 20
    assert all(rank.failure for rank in ranks)
    assert "CCL_SECRET_FILE" in ranks[1].failure, ranks[1].failure


# ---- foreign connections

# Every listening port except the store's receives data that no rank sends. The data port drops the
# connection requests of hosts without ranks.
FOREIGN_CLIENT = """
import contextlib, os, socket, sys, time
address, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
open_ones, unreachable = [], set()
sayings = [b"", b"GET / HTTP/1.1\\r\\n\\r\\n", bytes(100), b"\\xff" * 65536, os.urandom(100_000)]
for words in sayings:
    for port in ports:
        try:
            connection = socket.create_connection((address, port), timeout=1)
        except TimeoutError:
            unreachable.add(port)
            continue
        connection.settimeout(2)
        with contextlib.suppress(OSError):
            connection.sendall(words)
        if port % 2:
            connection.close()
        open_ones.append(connection)
for port in range(20000, 21000):
    with contextlib.suppress(ConnectionError, TimeoutError):
        socket.create_connection((address, port), timeout=1).close()
time.sleep(3)  # longer than a handshake may take
sys.exit(len(unreachable))
"""


def add_up_until(rank: int, size: int, stop: Path, errors: Path) -> int:
    """Returns the number of sums; stderr of each rank goes to a file."""
    import torch
    import torch.distributed as dist

    with (errors / str(rank)).open("w") as file:
        os.dup2(file.fileno(), 2)
    count = 0
    stopped = torch.zeros(1)
    while stopped.item() == 0:
        add_up(rank, size)
        count += 1
        stopped.fill_(stop.exists())
        dist.all_reduce(stopped, dist.ReduceOp.MAX)
    return count


def listening_on(host: Host) -> list[int]:
    lines = host.run("ss", "-Htln").splitlines()
    ports = {int(line.split()[3].rpartition(":")[2]) for line in lines}
    return sorted(ports - {STORE_PORT})


def test_foreign_connections(hosts, tmp_path):
    stop = tmp_path / "stop"
    with started_on_hosts(
        hosts[:2], [1, 1], add_up_until, stop, tmp_path, CCL_PORT_RANGE="20000-20100"
    ) as ranks:
        while not all((tmp_path / str(rank)).exists() for rank in range(2)):
            assert all(rank.process.is_alive() for rank in ranks)
            time.sleep(0.01)
        clients = []
        for host, other in (hosts[:2], hosts[1::-1]):
            ports = listening_on(host)
            assert len(ports) == 2
            words = [sys.executable, "-c", FOREIGN_CLIENT, host.address, *map(str, ports)]
            clients += [source.start(words) for source in (hosts[2], other)]
        assert [client.wait(40) for client in clients] == [1, 0, 1, 0]
        stop.touch()
    for number, rank in enumerate(ranks):
        assert not rank.failure, rank.failure
        assert rank.value > 1
        printed = (tmp_path / str(number)).read_text().splitlines()
        expected = "dropped an unauthenticated control connection"
        assert len(printed) == 1 and expected in printed[0], printed
