"""Jobs with the environment of a script that was written for oneCCL, started as torchrun does."""

import re
import subprocess
import sys

import pytest
from support.launchers import clean_environment, free_port
from torch_ccl import launchers

BOUND_S = 100
SIZE = 2

#: From ALCF's pages about Aurora. The CPUs do not exist on a machine for tests.
AURORA = {
    "CCL_PROCESS_LAUNCHER": "pmix",
    "CCL_ATL_TRANSPORT": "mpi",
    "CCL_ALLREDUCE": "topo",
    "CCL_ALLREDUCE_SCALEOUT": "direct:0-1048576;rabenseifner:1048577-max",
    "CCL_BCAST": "double_tree",
    "CCL_KVS_MODE": "mpi",
    "CCL_KVS_CONNECTION_TIMEOUT": "600",
    "CCL_KVS_USE_MPI_RANKS": "1",
    "CCL_CONFIGURATION_PATH": "",
    "CCL_CONFIGURATION": "cpu_gpu_dpcpp",
    "CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD": "1024",
    "CCL_ATL_SYNC_COLL": "1",
    "CCL_OP_SYNC": "1",
    "CCL_WORKER_AFFINITY": "4042,4043,4044,4045",
    "CCL_LOG_LEVEL": "WARN",
}
AURORA_IGNORED = [
    "CCL_ATL_SYNC_COLL",
    "CCL_KVS_CONNECTION_TIMEOUT",
    "CCL_KVS_MODE",
    "CCL_KVS_USE_MPI_RANKS",
    "CCL_OP_SYNC",
    "CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD",
]
#: From Intel's scripts for training on CPUs.
CPU_CLUSTER = {
    "CCL_WORKER_COUNT": "1",
    "CCL_WORKER_OFFLOAD": "1",
    "CCL_LOG_LEVEL": "info",
    "CCL_BF16": "avx512bf",
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_ATL_SHM": "1",
    "CCL_SCHED_PROFILE": "1",
    "CCL_MNIC": "local",
    "CCL_MNIC_NAME": "irdma1,irdma5",
    "CCL_MNIC_COUNT": "2",
    "CCL_ALLREDUCE": "rabenseifner",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_LOCAL_SIZE": "2",
    "CCL_ROOT": "/opt/intel/oneapi/ccl/latest",
    "FI_PROVIDER": "psm3",
    "FI_PROVIDER_PATH": "/usr/lib64/libfabric",
}

SCRIPT = """
import os, torch, torch.distributed as dist, torch_ccl
backend = os.environ.get("TEST_BACKEND", "ccl")
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
unused = dist.new_group(backend=backend)
total = torch.full((1000,), rank + 1.0)
dist.all_reduce(total)
assert total.eq(size * (size + 1) / 2).all()
large = torch.full((1 << 20,), rank + 1.0)
dist.all_reduce(large)
assert large.eq(size * (size + 1) / 2).all()
dist.broadcast(total, 1)
parts = [torch.empty(3) for _ in range(size)]
dist.all_gather(parts, torch.full((3,), float(rank)))
assert [int(part[0]) for part in parts] == list(range(size))
print("right", flush=True)
dist.destroy_process_group()
"""
LINE = re.compile(
    r"tccl \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \S+ (?:rank (\d+)|pid \d+) (\S+) (\w+): (.*)"
)


def run_job(size: int = SIZE, **variables: str) -> list[tuple[str | None, str, str, str]]:
    """(rank, group, level, text) of all log lines of a job whose ranks find the right results."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), **master, **variables}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=clean_environment(RANK=str(rank), LOCAL_RANK=str(rank), **common),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=BOUND_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, (out, err) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0 and out == "right\n", err
    lines = [line for _, err in outputs for line in err.splitlines() if "tccl" in line]
    assert all(LINE.fullmatch(line) for line in lines), lines
    return [LINE.fullmatch(line).groups() for line in lines]


@pytest.mark.parametrize("size", [2, 3])
def test_the_environment_of_aurora(size):
    first, second = run_job(size, **AURORA)
    assert first[:3] == ("0", first[1], "warn")
    assert re.findall(r"CCL_\w+", first[3]) == AURORA_IGNORED
    assert second[:3] == ("0", first[1], "warn")
    assert ("cannot be divided" in second[3]) == (size == 3)
    assert "CCL_WORKER_AFFINITY" in second[3] and "are offline" in second[3]


def test_the_environment_of_a_cpu_cluster():
    lines = run_job(**CPU_CLUSTER)
    assert {rank for rank, *_ in lines} == {"0"}
    warnings = [text for _, _, level, text in lines if level == "warn"]
    for name in CPU_CLUSTER:
        assert sum(text.count(name) for text in warnings) <= 1 or name == "CCL_MNIC", warnings
    assert re.findall(r"CCL_\w+", warnings[0]) == [
        "CCL_BF16",
        "CCL_MNIC",
        "CCL_MNIC_COUNT",
        "CCL_SCHED_PROFILE",
    ]
    assert len(warnings) == 2 and "irdma1,irdma5" in warnings[1]


def test_a_group_is_described_at_its_first_operation():
    """The second group of the script is never used."""
    ((rank, _, level, text),) = run_job(CCL_LOG_LEVEL="info", CCL_WORKER_COUNT="1")
    assert (rank, level) == ("0", "info")
    assert re.match(r"2 ranks on 1 host \(\S+ 0,1\); shared memory; 1 worker per rank; ", text)
    assert re.search(r"kernels \w+; algorithms: .*one_shot for .*\ballreduce\b", text)
    assert "served" not in text


def test_a_replaced_backend_is_named():
    variables = {"CCL_LOG_LEVEL": "INFO", "CCL_REPLACE": "gloo", "TEST_BACKEND": "gloo"}
    ((_, group, level, text),) = run_job(**variables)
    assert (group, level) == ("world", "info")
    assert text.endswith("; gloo is served by torch-ccl")


def test_local_rank_of_a_script_without_launcher():
    """CCL_PROCESS_LAUNCHER=none: the script numbers its ranks itself, on hosts of two."""
    numbers = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}
    own = launchers.get_dist_env({**numbers, "CCL_LOCAL_RANK": "1", "CCL_LOCAL_SIZE": "2"})
    assert (own.rank, own.local_rank, own.local_size) == (5, 1, 2)
    by_torchrun = {**numbers, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}
    own = launchers.get_dist_env({**by_torchrun, "CCL_LOCAL_RANK": "1", "CCL_LOCAL_SIZE": "2"})
    assert (own.local_rank, own.local_size) == (0, 4)
    plain = launchers.RankInfo("environment", 5, 8, None, None)
    assert not launchers.is_set_by_launcher(plain, {**numbers, "CCL_LOCAL_RANK": "1"})


def test_errors_only():
    assert run_job(**{**AURORA, "CCL_LOG_LEVEL": "error", "CCL_ALLREDUEC": "ring"}) == []


def test_unknown_names_are_reported_once():
    ((rank, _, level, text),) = run_job(CCL_ALLREDUEC="ring")
    assert (rank, level) == ("0", "warn")
    assert "CCL_ALLREDUEC is not a setting" in text
    assert text.endswith("did you mean CCL_ALLREDUCE?")


def test_trace_shows_every_operation_of_every_rank():
    lines = run_job(CCL_LOG_LEVEL="trace")
    traced = [(rank, text) for rank, _, level, text in lines if level == "trace"]
    for rank in range(SIZE):
        texts = [text for number, text in traced if number == str(rank)]
        assert sum("allreduce(count 1000, float32, sum" in text for text in texts) == 1
        assert all(re.search(r"operation \d+: .* took \d+ us$", text) for text in texts)
    assert any(level == "debug" for _, _, level, _ in lines)
