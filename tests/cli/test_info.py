"""`torch-ccl info`: what it prints is what the library does, and what the machine has."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_ccl.cli.info import NO_LIMIT, print_algorithms
from torch_ccl.cli.machine import instruction_sets, limits, topology
from torch_ccl.cli.settings import unknown_settings
from torch_ccl.libtccl import settings_table


def info(*options: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch_ccl_command", "info", *options]
    return subprocess.run(
        command,
        env={**os.environ, "COLUMNS": "150", **environment},  # xdist sets it to the terminal's
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows_of(output: str, operation: str) -> list[str]:
    return [line for line in output.splitlines() if f"│ {operation} " in line]


def test_settings_and_their_sources():
    shown = info(CCL_CHUNK_BYTES="64K", CCL_CHUNK_BYTE="1", CCL_RSH="ssh")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    chunk = next(line for line in lines if "CCL_CHUNK_BYTES" in line)
    eager = next(line for line in lines if "CCL_EAGER_BYTES" in line)
    assert "64K" in chunk and "environment" in chunk
    assert "default" in eager
    misspelt = next(line for line in lines if "CCL_CHUNK_BYTE " in line)
    assert "CCL_CHUNK_BYTES" in misspelt
    assert "CCL_RSH" not in shown.stdout  # belongs to `torch-ccl run`
    assert any("torch " in line and torch.__version__ in line for line in lines)
    assert shown.stderr == ""  # the table shows it; the library must not warn too


def test_variables_of_oneccl():
    shown = info("--settings", CCL_ATL_TRANSPORT="mpi", CCL_ZE_CACHE="1", CCL_FUSION="0")
    assert shown.returncode == 0, shown.stderr
    (ignored,) = (line for line in shown.stdout.splitlines() if "CCL_ZE_CACHE" in line)
    assert "GPU kernels" in ignored
    assert "CCL_FUSION" not in shown.stdout  # oneCCL's default


def test_json():
    shown = info("--json", FI_PROVIDER="sockets", CCL_NO_SUCH_THING="1")
    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    versions = facts["versions"]
    assert versions["torch"] == torch.__version__
    assert versions["Python"] == platform.python_version()
    assert versions["kernel"] == platform.release()
    assert versions["libfabric"] == "not found" or float(versions["libfabric"]) > 1
    processor = facts["processor"]
    assert processor["instruction_set"] == processor["instruction_sets"][-1]
    assert processor["cpus"] >= processor["cores"] >= processor["sockets"] >= 1
    settings = {row["name"]: row for row in facts["settings"]}
    assert settings["CCL_ATL_PROVIDER"] == {
        "name": "CCL_ATL_PROVIDER",
        "value": "sockets",
        "from": "FI_PROVIDER",
    }
    assert "CCL_NO_SUCH_THING" in facts["unknown_settings"]
    assert {row["operation"] for row in facts["algorithms"]} >= {"allreduce", "barrier"}


def test_values_with_special_characters():
    value = 'a "b" \\c\n\t\x01é'
    shown = info("--json", CCL_SECRET_FILE=value)
    assert shown.returncode == 0, shown.stderr
    settings = {row["name"]: row["value"] for row in json.loads(shown.stdout)["settings"]}
    assert settings["CCL_SECRET_FILE"] == value


def test_only_the_settings():
    shown = info("--settings", CCL_CHUNK_BYTES="64K")
    assert shown.returncode == 0, shown.stderr
    assert any("CCL_CHUNK_BYTES" in line and "64K" in line for line in shown.stdout.splitlines())
    assert torch.__version__ not in shown.stdout


def test_algorithms_by_table_and_by_environment():
    shown = info("--algorithms", CCL_ALLREDUCE="one_shot:0-16384;two_shot:16385-max")
    assert shown.returncode == 0, shown.stderr
    rows = rows_of(shown.stdout, "allreduce")
    assert any("one_shot" in row and "0-max" in row and "table" in row for row in rows), rows
    assert any("0-16384" in row and "environment" in row for row in rows), rows
    assert any("two_shot" in row and "16385-max" in row for row in rows), rows
    assert rows_of(shown.stdout, "barrier")


def test_algorithm_without_a_rule(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    row = {
        "operation": "allgather",
        "algorithm": "ring",
        "doc": "round the ranks",
        "from_bytes": 0,
        "to_bytes": NO_LIMIT,
        "from_ranks": 1,
        "dtypes": "all",
        "several_hosts": False,
        "by_setting": False,
        "applies": False,
    }
    print_algorithms([row])
    (shown,) = rows_of(capsys.readouterr().out, "allgather")
    assert "ring" in shown and "setting only" in shown and "max" not in shown


def test_an_invalid_setting_is_named():
    shown = info("--algorithms", CCL_ALLREDUCE="magic")
    assert shown.returncode == 1
    (line,) = shown.stderr.splitlines()
    assert line.startswith('torch-ccl info: CCL_ALLREDUCE=magic: there is no algorithm "magic"')
    assert "one_shot" in line and "two_shot" in line


def test_the_most_similar_setting():
    environment = dict.fromkeys(
        ["CCL_WORKERS_COUNT", "CCL_ALL_REDUCE", "CCL_ALLREDUCE", "CCL_ROOT", "CCL_Q", "OTHER"], ""
    )
    assert unknown_settings(environment, settings_table()) == {
        "CCL_ALL_REDUCE": "CCL_ALLREDUCE",
        "CCL_Q": "",
        "CCL_WORKERS_COUNT": "CCL_WORKER_COUNT",
    }


# ---- other machines


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_topology(tmp_path):
    """Two sockets of two cores with two CPUs each; one CPU of the second node may be used."""
    cpu = "sys/devices/system/cpu"
    files = {
        f"{cpu}/online": "0-7",
        "sys/devices/system/node/node0/cpulist": "0-1,4-5",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7",
    }
    for number in range(8):
        topology_of = f"{cpu}/cpu{number}/topology"
        files[f"{topology_of}/physical_package_id"] = str(number % 4 // 2)
        files[f"{topology_of}/thread_siblings_list"] = f"{number % 4},{number % 4 + 4}"
    assert topology([0, 1, 4, 5, 6], write(tmp_path, files)) == {
        "sockets": 2,
        "numa_nodes": {0: "0-1,4-5", 1: "2-3,6-7"},
        "cores": 4,
        "cpus": 8,
        "usable_cpus": "0-1,4-6",
        "usable_cores": 3,
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse2", ["baseline"]),
        ("fpu avx2 f16c", ["baseline", "avx2"]),
        ("avx2 f16c avx512f avx512bw avx512dq avx512vl", ["baseline", "avx2", "avx512"]),
    ],
)
def test_instruction_sets(tmp_path, flags, expected):
    root = write(tmp_path, {"proc/cpuinfo": f"processor : 0\nflags\t\t: {flags}\n"})
    assert instruction_sets(root) == expected


def test_instruction_sets_of_aarch64(tmp_path):
    cpuinfo = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU part\t: 0xd0c\n"
    assert instruction_sets(write(tmp_path, {"proc/cpuinfo": cpuinfo})) == ["neon"]


def test_no_cgroup_no_limits(tmp_path):
    assert limits(tmp_path) == (None, None, None)


def test_cgroup_version_2(tmp_path):
    """The tightest limit counts, including those of ancestors."""
    files = {
        "proc/self/cgroup": "0::/jobs/7",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-63",
        "sys/fs/cgroup/jobs/cpu.max": "250000 100000",
        "sys/fs/cgroup/jobs/memory.max": "max",
        "sys/fs/cgroup/jobs/7/cpu.max": "max 100000",
        "sys/fs/cgroup/jobs/7/memory.max": str(1 << 30),
        "sys/fs/cgroup/jobs/7/cpuset.cpus.effective": "0-3",
    }
    assert limits(write(tmp_path, files)) == (2.5, [0, 1, 2, 3], 1 << 30)


def test_cgroup_version_1(tmp_path):
    """In a container without a namespace of cgroups the path is the host's; ours is the root."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpuset:/docker/abc\n1:cpu,cpuacct:/docker/abc",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str((1 << 63) - 4096),
        "sys/fs/cgroup/cpuset/cpuset.cpus": "2,3",
    }
    assert limits(write(tmp_path, files)) == (1.5, [2, 3], None)
