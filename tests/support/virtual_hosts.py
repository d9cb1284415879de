"""Virtual hosts on one machine, for tests of traffic between hosts. Needs root and iproute2.

    with virtual_hosts(2, rate="1gbit") as hosts:
        hosts[0].start(["python", "rank.py"], env=...)
        hosts[1].link_down()

A host is a network namespace that is connected to a bridge by a veth pair, with its own host name,
IPC objects, /dev/shm, /etc/hosts and boot_id. Files, processes and cores are the machine's. No
packet leaves the namespaces. At the end the namespaces are removed and every process in them is
killed. With `networks` > 1 hosts have more interfaces: all eth1 form a second network, and so on.
"""

import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

NETWORK = "10.77"  # prefix of the IPv4 networks
KINDS = ("net", "uts", "ipc", "mnt")  # the namespaces of a host
READY_S = 10.0
CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
_networks = itertools.count(1)  # a process may have several at once


def command(*words: str) -> None:
    finished = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if finished.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {finished.stderr.strip()}")


def enter_namespace(path: str) -> None:
    """Moves this thread into the namespace with this file."""
    with Path(path).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")


def shape(namespace: str, device: str, rate: str | None) -> None:
    """Limits the egress rate of a device; `rate` in the syntax of tc, such as 1gbit."""
    inside = ["ip", "netns", "exec", namespace, "tc", "qdisc"]
    subprocess.run([*inside, "del", "dev", device, "root"], capture_output=True, timeout=30)
    if rate:
        # A queue of 2 MB, 16 ms at 1 Gbit/s, is typical of a switch port.
        bucket = ["tbf", "rate", rate, "burst", "320k", "limit", "2m"]
        command(*inside, "add", "dev", device, "root", *bucket)


@dataclass
class Host:
    number: int
    name: str
    switch: str
    namespace: str
    directory: Path
    namespace_process: subprocess.Popen | None = None  # keeps the namespaces alive
    _started: list[subprocess.Popen] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.address_in(0)

    @property
    def address6(self) -> str:
        return self.address_in(0, 6)

    def address_in(self, network: int, family: int = 4) -> str:
        if family == 6:
            return f"fd77:{network}::{self.number}"
        return f"{NETWORK}.{network}.{self.number}"

    @property
    def path(self) -> str:
        """The file of its network namespace."""
        return f"/run/netns/{self.namespace}"

    @property
    def _port(self) -> str:
        return f"port{self.number}-0"

    def create(self) -> None:
        command("ip", "netns", "add", self.namespace)
        command("ip", "-n", self.namespace, "link", "set", "lo", "up")

    def connect(self, network: int, families: tuple[int, ...]) -> None:
        device, port, switch = f"eth{network}", f"port{self.number}-{network}", f"switch{network}"
        pair = ["type", "veth", "peer", "name", device, "netns", self.namespace]
        command("ip", "-n", self.switch, "link", "add", port, *pair)
        command("ip", "-n", self.switch, "link", "set", port, "master", switch, "up")
        inside = ["ip", "-n", self.namespace]
        command(*inside, "link", "set", device, "up")
        for family in families:
            # Without nodad, IPv6 spends a second on duplicate address detection.
            length, flags = (64, ["nodad"]) if family == 6 else (24, [])
            address = f"{self.address_in(network, family)}/{length}"
            command(*inside, "addr", "add", address, "dev", device, *flags)

    def set_names(self, *lines: str) -> None:
        """Sets the lines of its /etc/hosts, besides localhost."""
        self._names.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")

    @property
    def _names(self) -> Path:
        return self.directory / self.name / "hosts"

    def boot(self, *names: str) -> None:
        own = self._names.parent
        own.mkdir(parents=True)
        self.set_names(*names)
        (own / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (own / "resolv.conf").write_text("# names are resolved by /etc/hosts alone\n")
        script = f"""
            hostname {self.name}
            mount -t tmpfs -o mode=1777 tmpfs /dev/shm
            mount --bind {self._names} /etc/hosts
            [ ! -e /etc/resolv.conf ] || mount --bind {own}/resolv.conf /etc/resolv.conf
            mount --bind {own}/boot_id /proc/sys/kernel/random/boot_id
            touch {own}/ready
            exec sleep infinity"""
        die_with_parent = ["setpriv", "--pdeathsig", "KILL"]
        network = ["nsenter", f"--net={self.path}"]
        others = ["unshare", "--uts", "--ipc", "--mount", "--propagation", "private"]
        self.namespace_process = subprocess.Popen(
            [*die_with_parent, *network, *others, "sh", "-ec", script],
            stderr=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + READY_S
        while not (own / "ready").exists():
            if self.namespace_process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"{self.name} did not start: {self.namespace_process.communicate()[1]}"
                )
            time.sleep(0.01)

    def container(self, name: str) -> "Host":
        """Returns a container on this host's network, with its own host name, IPC and mounts."""
        other = replace(self, name=name, _started=[])
        other.boot()
        self._started.append(other.namespace_process)
        return other

    def inside(self, words: list[str]) -> list[str]:
        """The command line that runs `words` on this host, in the current directory."""
        flags = {"mnt": "mount"}
        namespaces = [
            f"--{flags.get(k, k)}=/proc/{self.namespace_process.pid}/ns/{k}" for k in KINDS
        ]
        return ["nsenter", *namespaces, f"--wd={Path.cwd()}", "--", *words]

    def start(self, words: list[str], **options) -> subprocess.Popen:
        """Starts a process on this host, in a new session. shut_down() kills it."""
        process = subprocess.Popen(self.inside(words), start_new_session=True, **options)
        self._started.append(process)
        return process

    def run(self, *words: str) -> str:
        """Returns the stdout of a short command; its exit code must be 0."""
        finished = subprocess.run(
            self.inside(list(words)), capture_output=True, text=True, timeout=60
        )
        assert finished.returncode == 0, f"{words} on {self.name}: {finished.stderr}"
        return finished.stdout

    def link_down(self) -> None:
        """Takes the link down: packets are lost, and no connection is closed."""
        command("ip", "-n", self.switch, "link", "set", self._port, "down")

    def link_up(self) -> None:
        command("ip", "-n", self.switch, "link", "set", self._port, "up")

    def set_rate(self, rate: str | None) -> None:
        shape(self.namespace, "eth0", rate)
        shape(self.switch, self._port, rate)

    def set_congestion_control(self, name: str) -> None:
        """Applies to new connections. Only algorithms that the machine allows can be set."""
        self.run("sh", "-c", f"echo {name} > {CONTROL}")

    def congestion_control(self) -> str:
        return self.run("cat", CONTROL).strip()

    def sent_bytes(self, device: str = "eth0") -> int:
        """Bytes that this host has sent since it was connected."""
        (link,) = json.loads(self.run("ip", "-json", "-stats", "link", "show", device))
        return link["stats64"]["tx"]["bytes"]

    def pids(self) -> list[int]:
        """All processes in the network namespace."""
        words = ["ip", "netns", "pids", self.namespace]
        return [int(pid) for pid in subprocess.run(words, capture_output=True).stdout.split()]

    def shut_down(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (*self._started, *filter(None, [self.namespace_process])):
            process.kill()
            process.wait()
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, timeout=30)


@contextlib.contextmanager
def virtual_hosts(
    count: int,
    rate: str | None = None,
    names: list[str] | None = None,
    *,
    networks: int = 1,
    families: tuple[int, ...] = (4,),
    before_connect: Callable[[Host], None] = lambda host: None,
) -> Iterator[list[Host]]:
    """Host names are h1, h2, ... unless `names` is given. `families` are 4 and 6, for IPv4, IPv6.
    `before_connect` is called before eth0 exists, and may add interfaces that precede it."""
    called = names or [f"h{k}" for k in range(1, count + 1)]
    prefix = f"tccl{os.getpid()}-{next(_networks)}"
    switch = f"{prefix}-switch"
    with tempfile.TemporaryDirectory(prefix="tccl-hosts-") as directory:
        hosts = [
            Host(k, name, switch, f"{prefix}-h{k}", Path(directory) / str(k))
            for k, name in zip(range(1, count + 1), called, strict=True)
        ]
        known = [f"{host.address_in(0, v)} {host.name}" for host in hosts for v in families]
        try:
            command("ip", "netns", "add", switch)
            for network in range(networks):
                device = f"switch{network}"
                command("ip", "-n", switch, "link", "add", device, "type", "bridge")
                command("ip", "-n", switch, "link", "set", device, "up")
            for host in hosts:
                host.create()
                before_connect(host)
                for network in range(networks):
                    host.connect(network, families)
                host.boot(*known)
                host.set_rate(rate)
            yield hosts
        finally:
            with contextlib.ExitStack() as stack:  # shut down every host, even if one fails
                stack.callback(
                    subprocess.run, ["ip", "netns", "del", switch], capture_output=True, timeout=30
                )
                for host in hosts:
                    stack.callback(host.shut_down)
