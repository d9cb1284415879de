"""The agent of a host: how ranks share its cores, and the port that it reserves."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.run_command import BOUND_S
from torch_ccl.agent import ports
from torch_ccl.agent.cores import Core, cores_of, format_cpu_list, parse_cpu_list, split_cores


def make_machine(root: Path, nodes: list[str], siblings: list[str]) -> None:
    for number, cpus in enumerate(nodes):
        node = root / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(cpus + "\n")
    for text in siblings:
        for cpu in parse_cpu_list(text):
            topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(text + "\n")


@pytest.fixture
def machine(tmp_path):
    """Two nodes of four cores with two CPUs each, numbered as Intel's are."""
    make_machine(tmp_path, ["0-3,8-11", "4-7,12-15"], [f"{k},{k + 8}" for k in range(8)])
    return tmp_path


def split(root: Path, cpus: str, ranks: int) -> list[str]:
    available = cores_of(parse_cpu_list(cpus), root)
    return [format_cpu_list(each.cpus) for each in split_cores(available, ranks)]


@pytest.mark.parametrize(
    ("cpus", "ranks", "expected"),
    [
        ("0-15", 1, ["0-15"]),
        ("0-15", 2, ["0-3,8-11", "4-7,12-15"]),
        ("0-15", 3, ["0-1,8-9", "2-3,10-11", "4-7,12-15"]),  # none on two nodes
        ("0-15", 4, ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        ("0-15", 8, [f"{k},{k + 8}" for k in range(8)]),  # whole cores
        ("0-15", 16, [str(cpu) for k in (0, 4) for c in range(k, k + 4) for cpu in (c, c + 8)]),
        ("0-15", 17, []),
        ("2-6", 2, ["2-3", "4-6"]),  # what this process may use
        ("0-3", 2, ["0-1", "2-3"]),
        ("0,4-7", 4, ["0", "4-5", "6", "7"]),
        ("1,9", 2, ["1", "9"]),  # the two CPUs of one core, if there is nothing else
    ],
)
def test_split_cores(machine, cpus, ranks, expected):
    assert split(machine, cpus, ranks) == expected


def test_split_cores_with_fewer_ranks_than_nodes(tmp_path):
    make_machine(tmp_path, ["0-1", "2-3", "4-5", "6-7"], [str(k) for k in range(8)])
    assert split(tmp_path, "0-7", 2) == ["0-3", "4-7"]
    assert split(tmp_path, "0-7", 3) == ["0-3", "4-5", "6-7"]


def test_split_cores_without_topology_files(tmp_path):
    assert cores_of([0, 1], tmp_path) == [Core(0, (0,)), Core(0, (1,))]
    assert split(tmp_path, "0-3", 2) == ["0-1", "2-3"]


def test_a_reserved_port_is_assigned_to_no_other_socket():
    """In a network namespace with eight ports, the kernel assigns all but the reserved one."""
    script = f"""
import runpy, socket
open_port = runpy.run_path({ports.__file__!r})["open_port"]
reserved = open_port(listening=False)
assigned = []
try:
    while True:
        assigned.append(socket.socket())
        assigned[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        assigned[-1].bind(("", 0))
except OSError:
    assigned.pop()
port = reserved.getsockname()[1]
assert port not in [each.getsockname()[1] for each in assigned]
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", port))
server.listen()
print(len(assigned))
assigned.pop().close()  # frees a port for the client below
socket.create_connection(("127.0.0.1", port)).close()
"""
    network = "ip link set lo up; echo 40000 40007 > /proc/sys/net/ipv4/ip_local_port_range"
    words = ["unshare", "--net", "sh", "-ec", f'{network}; exec "$@"', "sh", sys.executable]
    shown = subprocess.run(
        [*words, "-c", script], capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert int(shown.stdout) == 7
