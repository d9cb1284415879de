"""The variables that `import torch_ccl` sets, and those that it does not change."""

import json
import socket

import pytest
from support.launchers import free_port
from support.parameters import slow
from support.ranks import BOUND_S, run_script, start_script
from torch.distributed import TCPStore
from torch_ccl import launchers, rendezvous, rendezvous_checks

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PMI_RANK", "PMI_SIZE")


def completed(**environment: str) -> str:
    """Returns RANK/WORLD_SIZE LOCAL_RANK PMI_RANK/PMI_SIZE, with `-` for an unset variable."""
    before = dict(environment)
    launchers.export_rank_variables(environment)
    assert before.items() <= environment.items(), "something was overwritten"
    rank, size, local, pmi_rank, pmi_size = (environment.get(name, "-") for name in PLACE)
    return f"{rank}/{size} {local} {pmi_rank}/{pmi_size}"


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node1"}
BY_HAND = {"RANK": "3", "WORLD_SIZE": "4"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "8", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MVAPICH = {name.replace("OMPI_", "MV2_"): value for name, value in OPEN_MPI.items()}
PALS = {
    "PALS_RANKID": "5",
    "PALS_LOCAL_RANKID": "1",
    "PMI_RANK": "5",
    "PMI_SIZE": "6",
    "PMI_LOCAL_RANK": "1",
    "PMI_LOCAL_SIZE": "2",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
STEP = {
    **BATCH,
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, "-/- - -/-"),
        (TORCHRUN, "3/4 1 3/4"),
        (HYDRA, "2/8 0 2/8"),
        # by hand: with a loopback MASTER_ADDR all ranks are on this host
        (BY_HAND, "3/4 3 3/4"),
        ({**BY_HAND, "MASTER_ADDR": "127.0.0.1"}, "3/4 3 3/4"),
        ({**BY_HAND, "MASTER_ADDR": "10.0.0.7"}, "3/4 - 3/4"),
        ({**BY_HAND, "LOCAL_RANK": "0"}, "3/4 0 3/4"),
        # a wrapper script that copied hydra's variables; hydra sets the local rank
        ({**HYDRA, "RANK": "2", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.7"}, "2/8 0 2/8"),
        # torchrun started by hydra: the variables of both stay
        ({**HYDRA, **TORCHRUN}, "3/4 1 2/8"),
        # half a pair: completed if the launcher's variables agree, left unchanged otherwise
        ({**HYDRA, "WORLD_SIZE": "8"}, "2/8 0 2/8"),
        ({**HYDRA, "WORLD_SIZE": "4"}, "-/4 0 2/8"),
        ({"RANK": "1"}, "1/- - -/-"),
        ({"WORLD_SIZE": "2"}, "-/2 - -/-"),
        (OPEN_MPI, "5/6 1 5/6"),
        (MVAPICH, "5/6 1 5/6"),
        (PALS, "5/6 1 5/6"),
        ({name: value for name, value in PALS.items() if name != "PMI_RANK"}, "5/6 1 5/6"),
        # a batch script is no task of a step: size 1
        (BATCH, "-/- - -/-"),
        (STEP, "2/4 0 2/4"),
        # nested launchers: the innermost counts
        ({**STEP, **HYDRA}, "2/8 0 2/8"),
        ({**STEP, **TORCHRUN}, "3/4 1 3/4"),
        ({**STEP, **OPEN_MPI}, "5/6 1 5/6"),
        ({**STEP, **PALS}, "5/6 1 5/6"),
        ({**PALS, **TORCHRUN}, "3/4 1 5/6"),
        # not numbers
        ({"RANK": "", "WORLD_SIZE": ""}, "/ - -/-"),
        ({"PMI_RANK": "-1", "PMI_SIZE": "two"}, "-/- - -1/two"),
    ],
)
def test_complete(environment, expected):
    assert completed(**environment) == expected


ADDED = """
import json, os
before = dict(os.environ)
{imports}
assert before.items() <= os.environ.items()
print(json.dumps({{k: v for k, v in os.environ.items() if k not in before}}))
"""


def added(imports: str, **environment: str) -> dict[str, str]:
    return json.loads(run_script(ADDED.format(imports=imports), **environment))


@pytest.mark.parametrize("module", ["torch_ccl", "oneccl_bindings_for_pytorch"])
def test_import(module):
    expected = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert added(f"import {module}", RANK="1", WORLD_SIZE="2") == expected


def test_import_by_torch_adds_nothing():
    assert added("import torch", RANK="1", WORLD_SIZE="2") == {}
    expected = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert added("import torch, torch_ccl", PMI_RANK="1", PMI_SIZE="2", MPI_LOCALRANKID="0") == (
        expected
    )


DEFAULT_THAT_IS_NO_TEXT = """
import os, torch_ccl
os.environ["RANK"] = os.environ.get("PMI_RANK", -1)
os.environ["WORLD_SIZE"] = os.environ.get("PMI_SIZE", -1)
print(os.environ["RANK"], os.environ["WORLD_SIZE"])
"""


@pytest.mark.slow
def test_default_that_is_not_a_string():
    """Scripts for Intel's package use it. It is not needed if a launcher sets the rank; without
    a launcher Python refuses it."""
    assert run_script(DEFAULT_THAT_IS_NO_TEXT, **BY_HAND) == "3 4\n"
    assert run_script(DEFAULT_THAT_IS_NO_TEXT, **OPEN_MPI) == "5 6\n"
    alone = start_script(DEFAULT_THAT_IS_NO_TEXT)
    _, err = alone.communicate(timeout=BOUND_S)
    assert alone.returncode == 1
    assert err.splitlines()[-1] == "TypeError: str expected, not int"


def test_import_without_launcher_adds_nothing():
    assert added("import torch_ccl") == {}


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, (0, 1, 0, 1, "none", "")),
        (HYDRA, (2, 8, 0, 2, "hydra", "")),
        (STEP, (2, 4, 0, 2, "Slurm", "")),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "3,1"}, (2, 4, 0, 1, "Slurm", "")),
        (OPEN_MPI, (5, 6, 1, 2, "Open MPI", "")),
        (MVAPICH, (5, 6, 1, 2, "MVAPICH", "")),
        (PALS, (5, 6, 1, 2, "PALS", "")),
        ({**TORCHRUN, "MASTER_PORT": "1"}, (3, 4, 1, 4, "environment", "node1:1")),
        (BY_HAND, (3, 4, 3, 4, "environment", "")),
    ],
)
def test_rank_and_size(environment, expected):
    for seen in (dict(environment), dict(environment)):
        place = launchers.get_dist_env(seen)
        rank, size, local_rank, local_size, host, launcher, master = place
        assert (rank, size, local_rank, local_size, launcher, master) == expected
        assert host == socket.gethostname()
        launchers.export_rank_variables(seen)  # changes nothing of it
        assert launchers.get_dist_env(seen) == place


@pytest.mark.parametrize(
    "environment, problem",
    [
        ({"RANK": "1"}, "RANK=1 is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, but RANK is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 of WORLD_SIZE=2: ranks go from 0"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0 of WORLD_SIZE=0: ranks go from 0"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x is not a non-negative number"),
    ],
)
def test_invalid_rank_or_size(environment, problem):
    with pytest.raises(ValueError, match=problem):
        launchers.get_dist_env(environment)


@pytest.mark.parametrize(
    "written, first",
    [("n1", "n1"), ("n[1-3,7],m2", "n1"), ("n[08-10]", "n08"), ("a,b", "a"), ("a-b[3,5]", "a-b3")],
)
def test_first_host_of_a_step(written, first):
    assert rendezvous.first_host(written) == first


ON_TWO_HOSTS = [
    {"RANK": "1", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"},
    HYDRA,
    OPEN_MPI,
    PALS,
    STEP,
    {"SLURM_STEP_NUM_NODES": "2"},
]
ON_ONE_HOST = [{}, {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_NODES": "1"}]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_loopback_address_of_several_hosts_is_refused(address, monkeypatch):
    monkeypatch.setattr(rendezvous_checks, "RANK_0_TIMEOUT_S", 0)
    with socket.create_server((address, 0)) as server:
        used = str(server.getsockname()[1])
    where = {"MASTER_ADDR": address, "MASTER_PORT": used}
    for environment in ON_TWO_HOSTS:
        with pytest.raises(ValueError, match=f"MASTER_ADDR={address} .*several hosts"):
            rendezvous_checks.validate_master({**environment, **where}, "1")
        rendezvous_checks.validate_master({**environment, **where, "MASTER_ADDR": "node1"}, "1")
        for rank in ("0", ""):  # serves the store, or has no rank
            rendezvous_checks.validate_master({**environment, **where}, rank)
    for environment in ON_ONE_HOST:
        rendezvous_checks.validate_master({**environment, **where}, "1")
    # two launchers on one machine: one of them serves the store
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    rendezvous_checks.validate_master(
        {**ON_TWO_HOSTS[0], **where, "MASTER_PORT": str(store.port)}, "1"
    )


REFUSED = """
import os, time
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="9", RANK="1", WORLD_SIZE="2")
import torch.distributed as dist
import torch_ccl
os.environ["LOCAL_WORLD_SIZE"] = "1"
torch_ccl.rendezvous_checks.RANK_0_TIMEOUT_S = 1
begin = time.monotonic()
try:
    dist.init_process_group("ccl")
except ValueError as error:
    assert "MASTER_ADDR=127.0.0.1" in str(error), error
    assert time.monotonic() - begin < 10
    print("refused")
"""


def test_loopback_address_of_several_hosts_is_refused_in_init():
    assert "refused" in run_script(REFUSED)


MADE_BY_CALL = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as server:
    port = str(server.getsockname()[1])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK="1", SLURM_STEP_NUM_NODES="2")
import torch.distributed as dist
import torch_ccl
torch_ccl.rendezvous_checks.RANK_0_TIMEOUT_S = 1
dist.init_process_group("ccl", rank=0, world_size=1)
print("made")
"""


def test_arguments_override_the_environment():
    """Each host may run its own job, whatever the launcher's host variables are."""
    assert "made" in run_script(MADE_BY_CALL)


ALONE = """
import torch, torch_ccl, torch.distributed as dist
place = torch_ccl.init()
assert place == torch_ccl.init() == torch_ccl.get_dist_env()
x = torch.ones(2)
dist.all_reduce(x)
assert torch_ccl.settings()["CCL_ATL_TRANSPORT"] == "ofi"
print(place.rank, place.world_size, place.local_rank, place.local_size, place.launcher, x.tolist())
"""


def test_a_script_without_a_launcher_is_a_group_of_one():
    assert run_script(ALONE).strip() == "0 1 0 1 none [1.0, 1.0]"


def test_a_batch_script_is_a_group_of_one():
    assert run_script(ALONE, **BATCH).strip() == "0 1 0 1 none [1.0, 1.0]"


# ---- exit of a script that calls init() and destroys no group

ENDS = """
import sys, time, torch, torch_ccl, torch.distributed as dist
from datetime import timedelta
place = torch_ccl.init(timeout=timedelta(seconds=50))
dist.barrier()
x = torch.ones(1 << 20)
begin = time.monotonic()
if place.rank == 0:
    dist.all_reduce(x, async_op=True)
    time.sleep(0.5)  # so that the other has left the barrier
    {last_statement}
"""
JOINS_LATE = """
else:
    time.sleep(2)
    dist.all_reduce(x)
    print(x[0].item())
"""
WAITS_IN_ANOTHER_OPERATION = """
else:
    try:
        dist.recv(x, src=0)
    except dist.DistBackendError as error:
        assert time.monotonic() - begin < 20, "it failed only at the timeout"
        print(error)
"""


def run_two(script: str) -> list[tuple[int, str, str]]:
    """Returns the exit codes, stdout and stderr of both ranks."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [start_script(script, RANK=rank, **place) for rank in "01"]
    try:
        printed = [rank.communicate(timeout=BOUND_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *lines) for rank, lines in zip(ranks, printed, strict=True)]


@pytest.mark.parametrize("last_statement", ["pass", slow("sys.exit(0)")])
def test_exit_completes_pending_operations(last_statement):
    ranks = run_two(ENDS.format(last_statement=last_statement) + JOINS_LATE)
    assert ranks == [(0, "", ""), (0, "2.0\n", "")]


def test_exit_by_an_error_does_not_wait():
    raises = ENDS.format(last_statement="raise ValueError('the cause')")
    (code, _, err), other = run_two(raises + WAITS_IN_ANOTHER_OPERATION)
    assert code == 1 and "ValueError: the cause" in err
    code, out, err = other
    assert (code, err) == (0, "") and out.startswith("ccl: rank 0 left group world with"), other
