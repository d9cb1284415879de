"""The virtual hosts of support/virtual_hosts.py."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.virtual_hosts import virtual_hosts

SERVER = """
import socket, sys
with socket.create_server(("", 7777)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    total = 0
    while data := connection.recv(1 << 20):
        total += len(data)
    print(total)
"""
CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7777), timeout=10) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def send(hosts, count: int) -> float:
    """Sends bytes from the second host to the first; returns how long it took."""
    server = hosts[0].start([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    begin = time.monotonic()
    hosts[1].run(sys.executable, "-c", CLIENT, hosts[0].name, str(count))
    assert int(server.communicate(timeout=30)[0]) == count
    return time.monotonic() - begin


def test_each_host_has_its_own_name_network_and_memory():
    with virtual_hosts(2) as hosts:
        assert [host.run("hostname").strip() for host in hosts] == ["h1", "h2"]
        for path in ("/proc/sys/kernel/random/boot_id", "/etc/hosts"):
            contents = [host.run("cat", path) for host in hosts]
            assert (contents[0] == contents[1]) == (path == "/etc/hosts")
        hosts[0].run("touch", "/dev/shm/mine")
        assert "mine" not in hosts[1].run("ls", "/dev/shm")
        links = hosts[0].run("ip", "-o", "addr")
        assert "10.77.0.1/24" in links and "10.77.0.2/24" not in links


def test_names():
    with virtual_hosts(2, names=["left", "right"]) as hosts:
        assert hosts[1].run("hostname").strip() == "right"
        assert hosts[1].run("getent", "hosts", "left").split() == [hosts[0].address, "left"]


def test_two_networks():
    with virtual_hosts(1) as one, virtual_hosts(1, names=["other"]) as other:
        assert one[0].run("hostname") == "h1\n" and other[0].run("hostname") == "other\n"


def test_traffic_rate_and_link_down():
    with virtual_hosts(2) as hosts:
        before = hosts[1].sent_bytes()
        assert send(hosts, 1 << 20) < 10
        assert (1 << 20) < hosts[1].sent_bytes() - before < 1.2 * (1 << 20)
        for host in hosts:
            host.set_rate("100mbit")
        assert send(hosts, 5 << 20) > 0.3  # 0.42 s at 100 Mbit/s
        hosts[0].link_down()
        with pytest.raises(AssertionError, match=r"timed out|No route|unreachable"):
            hosts[1].run(sys.executable, "-c", CLIENT, hosts[0].address, "1")
        hosts[0].link_up()
        assert send(hosts, 1000) < 10


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_no_leftovers():
    with virtual_hosts(3) as hosts:
        sleeper = hosts[2].start(["sleep", "1000"])
        namespace_processes = [host.namespace_process for host in hosts]
        # A background process in its own session.
        pid = int(hosts[1].run("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"))
        assert pid in hosts[1].pids()
    assert sleeper.poll() is not None and all(
        process.poll() is not None for process in namespace_processes
    )
    end = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(pid)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert hosts[0].namespace not in listed.stdout and hosts[0].switch not in listed.stdout
