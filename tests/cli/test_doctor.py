"""`torch-ccl doctor`: every check, on machines with and without problems."""

import json
import resource
import socket
import subprocess
import sys

import pytest
import typer
from support.launchers import clean_environment, free_port
from torch_ccl import libtccl
from torch_ccl.cli import fabric
from torch_ccl.cli.checks import CHECKS, OK, PROBLEM, WARNING, Finding, Machine, self_test
from torch_ccl.cli.checks.environment import check_master
from torch_ccl.cli.doctor import find
from torch_ccl.cli.host_agent import own_addresses
from torch_ccl.cli.info import info
from torch_ccl.libtccl import Error

BOUND_S = 100
UNLIMITED = resource.RLIM_INFINITY
GIB = 1 << 30


def setting_rows(**values: str) -> dict:
    rows = {"CCL_SHARED_BYTES": "16G", **values}
    return {"settings": [{"name": k, "value": v, "is_set": k in values} for k, v in rows.items()]}


def settings_table() -> dict:
    names = ("CCL_SHARED_BYTES", "CCL_CHUNK_BYTES")
    others = [
        {"name": "CCL_ROOT", "default": "", "doc": "A path.", "is_ignored": False},
        {"name": "CCL_ZE_*", "default": "", "doc": "For GPUs.", "is_ignored": True},
        {"name": "CCL_FUSION", "default": "0", "doc": "No fusion.", "is_ignored": True},
    ]
    return {"settings": [{"name": name} for name in names], "other_variables": others}


def raising(error: Exception):
    def function(*_):
        raise error

    return function


@pytest.fixture
def machine(tmp_path):
    """machine(...) has 8 CPUs and no problem, except those that the arguments add."""

    def make(files: dict[str, str] | None = None, **facts) -> Machine:
        for name, text in {"sys/devices/system/cpu/online": "0-7", **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        healthy = {
            "environment": {},
            "root": tmp_path,
            "allowed": list(range(8)),
            "release": "6.1.0-18-amd64",
            "host_name": "localhost",
            "soft_limit": lambda _: UNLIMITED,
            "call_kernel": lambda: None,
            "query_libfabric": lambda: {"version": "1.17", "providers": ["tcp", "verbs;ofi_rxm"]},
            "addresses": lambda: ["10.0.0.1"],
            "settings_table": settings_table,
            "library_info": setting_rows,
        }
        return Machine(**{**healthy, **facts})

    return make


def cgroup(**files: str) -> dict[str, str]:
    return {
        "proc/self/cgroup": "0::/\n",
        **{f"sys/fs/cgroup/{name.replace('_', '.')}": text for name, text in files.items()},
    }


PINNED = {"CCL_WORKER_COUNT": "2", "CCL_WORKER_AFFINITY": "2,3,6,7"}
TWO_RANKS = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}

#: check, arguments of machine(), expected level, part of the expected text
CASES = [
    ("kernel", {}, OK, "6.1.0"),
    ("kernel", {"release": "4.18.0-553.el8"}, PROBLEM, "5.3"),
    ("kernel", {"call_kernel": raising(OSError(1, "Operation not permitted"))}, PROBLEM, "seccomp"),
    ("ptrace", {}, OK, "not needed"),
    ("ptrace", {"files": {"proc/sys/kernel/yama/ptrace_scope": "3"}}, OK, "ptrace_scope 3"),
    ("memory", {}, OK, "no limit"),
    ("memory", {"files": cgroup(memory_max=str(4 * GIB))}, OK, "4.0 GiB"),
    ("memory", {"files": cgroup(memory_max=str(GIB // 4))}, WARNING, "0.2 GiB"),
    ("address space", {}, OK, "16.0 GiB"),
    ("address space", {"soft_limit": lambda _: 20 * GIB}, PROBLEM, "ulimit -v"),
    (
        "address space",
        {"soft_limit": lambda what: GIB if what == resource.RLIMIT_FSIZE else UNLIMITED},
        PROBLEM,
        "ulimit -f",
    ),
    ("CPUs", {}, OK, "8 of 8 CPUs (0-7)"),
    ("CPUs", {"allowed": [2, 3]}, OK, "2 of 8 CPUs (2-3)"),
    ("CPUs", {"files": cgroup(cpu_max="250000 100000")}, WARNING, "use 2 threads"),
    ("threads", {}, OK, "1 rank with 8 threads"),
    ("threads", {"environment": {"OMP_NUM_THREADS": "9"}}, WARNING, "OMP_NUM_THREADS to 8"),
    ("threads", {"environment": TWO_RANKS}, WARNING, "OMP_NUM_THREADS to 4"),
    ("threads", {"environment": {**TWO_RANKS, "OMP_NUM_THREADS": "4"}}, OK, "2 ranks with 4"),
    ("threads", {"environment": TWO_RANKS, "allowed": [0, 1, 2, 3]}, OK, "2 ranks with 4"),
    (
        "threads",
        {
            "environment": TWO_RANKS,
            "allowed": [0, 1],
            "files": {**cgroup(), "sys/fs/cgroup/cpuset.cpus.effective": "0-1"},
        },
        WARNING,
        "OMP_NUM_THREADS to 1",
    ),
    ("workers", {}, OK, "auto"),
    ("workers", {"environment": {**TWO_RANKS, **PINNED}}, OK, "2,3,6,7"),
    ("workers", {"environment": PINNED}, OK, "2,3,6,7"),  # no job: any number of ranks
    ("workers", {"environment": {**ONE_RANK, **PINNED}}, WARNING, "need 2 CPUs, not 4"),
    ("workers", {"environment": {**ONE_RANK, **PINNED}}, WARNING, "torch-ccl info shows them"),
    (
        "workers",
        {"environment": {**TWO_RANKS, "CCL_WORKER_AFFINITY": "1-3"}},
        WARNING,
        "cannot be divided",
    ),
    ("workers", {"environment": {"CCL_WORKER_AFFINITY": "90"}}, WARNING, "no CPU 90"),
    ("workers", {"environment": {"CCL_WORKER_AFFINITY": "x"}}, PROBLEM, "to auto or CPUs"),
    ("workers", {"environment": {"CCL_WORKER_COUNT": "9"}}, WARNING, "9 workers on 8 CPUs"),
    (
        "workers",
        {"environment": {**TWO_RANKS, **PINNED, "I_MPI_PIN_DOMAIN": "[0xF,0xF0]"}},
        OK,
        "2,3,6,7",
    ),
    (
        "workers",
        {"environment": {**TWO_RANKS, **PINNED, "I_MPI_PIN_DOMAIN": "[0xF0,0xF]"}},
        WARNING,
        "workers of rank 0 are on CPU 2-3, which rank 1 uses",
    ),
    (
        "workers",
        {"environment": {**TWO_RANKS, "I_MPI_PIN_DOMAIN": "[0x3,0xC,0xF0]"}},
        WARNING,
        "3 masks for 2 ranks -> give each rank one mask",
    ),
    ("libfabric", {}, OK, "libfabric 1.17"),
    ("libfabric", {"environment": {"CCL_ATL_PROVIDER": "verbs"}}, OK, "verbs is used"),
    ("libfabric", {"environment": {"CCL_ATL_PROVIDER": "efa"}}, PROBLEM, "there is no efa"),
    ("libfabric", {"environment": {"FI_PROVIDER": "efa"}}, WARNING, "tcp is used"),
    ("libfabric", {"query_libfabric": lambda: {"problem": "not found"}}, WARNING, "libfabric1"),
    ("locked memory", {"soft_limit": lambda _: 1 << 16}, OK, "tcp does not need it"),
    ("locked memory", {"environment": {"FI_PROVIDER": "verbs"}}, OK, "unlimited"),
    (
        "locked memory",
        {"environment": {"FI_PROVIDER": "verbs;ofi_rxm"}, "soft_limit": lambda _: 1 << 23},
        WARNING,
        "ulimit -l unlimited",
    ),
    ("interfaces", {}, OK, "10.0.0.1"),
    (
        "interfaces",
        {
            "addresses": raising(Error("no interface fits")),
            "environment": {"CCL_SOCKET_IFNAME": "ib"},
        },
        PROBLEM,
        "CCL_SOCKET_IFNAME",
    ),
    ("interfaces", {"addresses": raising(Error("none"))}, WARNING, "one host only"),
    ("host name", {}, OK, "harmless"),
    ("host name", {"host_name": "no-such-host.invalid"}, WARNING, "/etc/hosts"),
    ("settings", {}, OK, "all are defaults"),
    ("settings", {"library_info": lambda: setting_rows(CCL_X="1")}, OK, "set: CCL_X"),
    ("settings", {"library_info": raising(Error("CCL_X=y: wrong"))}, PROBLEM, "CCL_X=y"),
    ("settings", {"library_info": raising(Error("wrong"))}, PROBLEM, "torch-ccl info"),
    ("oneCCL's variables", {"environment": {"CCL_FUSION": "0", "CCL_ROOT": "/"}}, OK, "all that"),
    (
        "oneCCL's variables",
        {"environment": {"CCL_ZE_CACHE": "1", "CCL_FUSION": "1"}},
        OK,
        "without effect: CCL_FUSION (No fusion), CCL_ZE_CACHE (For GPUs)",
    ),
    (
        "unknown settings",
        {"environment": {"CCL_ZE_CACHE": "1", "CCL_CONFIGURATION_PATH_modshare": "1"}},
        OK,
        "none",
    ),
    ("unknown settings", {"environment": {"CCL_SHARED_BYTES": "1G", "CCL_ROOT": "/"}}, OK, "none"),
    (
        "unknown settings",
        {"environment": {"CCL_CHUNK_BYTE": "1"}},
        WARNING,
        "CCL_CHUNK_BYTES instead of CCL_CHUNK_BYTE?",
    ),
    ("rank and size", {}, OK, "no launcher"),
    ("rank and size", {"environment": TWO_RANKS}, OK, "rank 0 of 2, from environment"),
    ("rank and size", {"environment": {"RANK": "1"}}, PROBLEM, "WORLD_SIZE is not"),
    ("rank and size", {"environment": {"RANK": "2", "WORLD_SIZE": "2"}}, PROBLEM, "RANK=2"),
    ("rendezvous", {}, OK, "not set"),
    ("rendezvous", {"environment": {"MASTER_PORT": "99999"}}, PROBLEM, "between 1 and 65535"),
]


@pytest.mark.parametrize(("name", "facts", "level", "part"), CASES)
def test_check(machine, name, facts, level, part):
    finding = dict(CHECKS)[name](machine(**facts))
    assert finding.level == level, finding
    assert part in f"{finding.found} -> {finding.advice}"
    assert bool(finding.advice) == (level != OK)
    assert "\n" not in finding.found + finding.advice
    assert "docs/" not in finding.advice, "the wheel has no such file"


def test_every_check_has_cases():
    assert {name for name, *_ in CASES} == {name for name, _ in CHECKS} - {"two ranks"}


def test_a_port_that_is_taken(machine):
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert check_master(machine(environment=environment)).level == OK
    with socket.create_server(("", int(environment["MASTER_PORT"]))):
        assert check_master(machine(environment=environment)).level == PROBLEM
        other = {**environment, "RANK": "1"}  # rank 0 is expected to have it
        assert check_master(machine(environment=other)).level == OK
        elsewhere = {**environment, "MASTER_ADDR": "192.0.2.77"}
        assert check_master(machine(environment=elsewhere)).level == OK


def test_two_ranks_that_fail(machine, monkeypatch):
    monkeypatch.setattr(self_test, "SCRIPT", 'raise ValueError("broken")')
    finding = self_test.check_two_ranks(machine())
    assert finding.level == PROBLEM
    assert "ValueError: broken" in finding.found


def test_two_ranks_that_time_out(machine, monkeypatch):
    monkeypatch.setattr(self_test, "SCRIPT", "import time; time.sleep(1000)")
    monkeypatch.setattr(self_test, "TIMEOUT_S", 0.5)
    finding = self_test.check_two_ranks(machine())
    assert finding.level == PROBLEM
    assert "timed out: the ranks did not end in time" in finding.found


@pytest.fixture
def broken_library(tmp_path, monkeypatch):
    """The path of a libtccl.so that cannot be loaded."""
    path = tmp_path / "libtccl.so"
    path.write_text("no library")
    monkeypatch.setattr(libtccl, "_path", lambda: path)
    libtccl.load.cache_clear()
    yield str(path)
    libtccl.load.cache_clear()


@pytest.mark.parametrize(
    "name", ["address space", "interfaces", "settings", "unknown settings", "host name"]
)
def test_library_that_cannot_be_loaded(broken_library, name):
    finding = find(dict(CHECKS)[name], Machine())
    if name == "host name":
        assert broken_library not in finding.found  # it does not need the library
    else:
        assert finding.level == PROBLEM
        assert broken_library in finding.found


def test_other_commands_without_the_library(broken_library, capsys):
    assert own_addresses() == []  # torch-ccl run
    with pytest.raises(typer.Exit) as end:
        info()
    assert end.value.exit_code == 1
    assert f"torch-ccl info: cannot load {broken_library}" in capsys.readouterr().err


def test_libfabric_that_is_missing_or_crashes(monkeypatch, tmp_path):
    assert fabric.query().keys() in ({"version", "providers"}, {"problem"})
    crashing = tmp_path / "fabric.py"
    crashing.write_text("import os; os.abort()")
    monkeypatch.setattr(fabric, "__file__", str(crashing))
    assert "libfabric does not respond" in fabric.query()["problem"]


def doctor(*options: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch_ccl_command", "doctor", *options]
    return subprocess.run(
        command,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


@pytest.mark.slow
def test_command_without_problems():
    """The check with two ranks must pass on a machine that runs the tests."""
    shown = doctor(CCL_CHUNK_BYTE="1")
    assert shown.returncode == 0, shown.stdout
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert len(lines) == len(CHECKS)
    for line, (name, _) in zip(lines, CHECKS, strict=True):
        assert line.split()[0] in (OK, WARNING)
        assert line[9:].startswith(name)
    assert any("CCL_CHUNK_BYTES instead of CCL_CHUNK_BYTE?" in line for line in lines)
    assert lines[-1].startswith("ok")


@pytest.mark.slow
def test_command_with_problems():
    shown = doctor("--json", CCL_ALLREDUCE="magic", CCL_SOCKET_IFNAME="nosuch")
    assert shown.returncode == 1
    levels = {row.pop("check"): Finding(**row).level for row in json.loads(shown.stdout)}
    problems = {name for name, level in levels.items() if level == PROBLEM}
    assert problems == {"settings", "interfaces", "two ranks"}
