"""Ranks on the nodes of a real Slurm cluster, started as users do, with no other variables set."""

import contextlib
import shlex
import shutil
import time
from pathlib import Path

import pytest
from support.mpi_hosts import AS_ROOT
from support.slurm_cluster import FEATURE, PARTITION, Cluster, SlurmResult, cluster

SCRIPTS = Path(__file__).parents[1] / "compat/scripts"
TWO_BY_TWO = ("-N", "2", "--tasks-per-node", "2")
HOSTS = ("n1", "n1", "n2", "n2")  # of the ranks


ADD_UP = """
import os, sys, time, torch, torch_ccl, torch.distributed as dist
from pathlib import Path

def say(line):  # one write, so that lines of ranks do not mix
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

env = torch_ccl.init()
x = torch.ones(1)
dist.all_reduce(x)
local = f"{env.local_rank} of {env.local_size} on {env.host}"
say(f"{env.rank} of {env.world_size}, {local}, by {env.launcher}: {x.item():g}")
"""
RANK = ("python", "-c", ADD_UP)


def expected(launcher: str, hosts: tuple[str, ...] = HOSTS) -> list[str]:
    return [
        f"{rank} of 4, {hosts[:rank].count(host)} of 2 on {host}, by {launcher}: 4"
        for rank, host in enumerate(hosts)
    ]


def lines_of(finished: SlurmResult) -> list[str]:
    assert finished.code == 0, f"exit code {finished.code}\n{finished.out}\n{finished.err}"
    return sorted(finished.out.splitlines())


def submit(slurm: Cluster, directory: Path, *words: str, **environment: str) -> SlurmResult:
    """Runs the command as a batch script, which Slurm starts on the first of two nodes."""
    out, err = directory / "batch.out", directory / "batch.err"
    options = (*TWO_BY_TWO, f"--output={out}", f"--error={err}")
    job = slurm.submit(*options, f"--wrap={shlex.join(words)}", **environment)
    return SlurmResult(job.code, out.read_text(), err.read_text())


# ---- steps


def test_srun(slurm):
    assert lines_of(slurm.run("srun", *TWO_BY_TWO, *RANK)) == expected("Slurm")


SAY_PORT = """
from torch_ccl.rendezvous import port_of_job
follows = env.master.endswith(f":{port_of_job(os.environ)}")
say("at a port that follows" if follows else "at any port")
"""


@pytest.fixture
def rank_0_elsewhere(tmp_path):
    """Options and environment of a step whose first rank is not on its first node."""
    hostfile = tmp_path / "hosts"
    hostfile.write_text("n2\nn1\nn1\nn2\n")
    return ("-N", "2", "-n", "4", "--distribution=arbitrary"), {"SLURM_HOSTFILE": str(hostfile)}


@pytest.mark.slow
@pytest.mark.parametrize("plugin", ["pmi2", "pmix"])
def test_srun_with_a_key_space(slurm, rank_0_elsewhere, plugin):
    options, environment = rank_0_elsewhere
    words = ("srun", f"--mpi={plugin}", *options, "python", "-c", ADD_UP + SAY_PORT)
    lines = [*expected("Slurm", ("n2", "n1", "n1", "n2")), *["at any port"] * 4]
    assert lines_of(slurm.run(*words, **environment)) == sorted(lines)


@pytest.mark.slow
def test_srun_cyclic_distribution(slurm):
    finished = slurm.run("srun", *TWO_BY_TWO, "--distribution=cyclic", *RANK)
    assert lines_of(finished) == expected("Slurm", ("n1", "n2", "n1", "n2"))


AGAIN = """
for _ in range(5):
    dist.destroy_process_group()
    torch_ccl.init()
    dist.all_reduce(x)
say(f"{x.item():g} after five more groups")
"""


@pytest.mark.slow
def test_consecutive_groups(slurm):
    finished = slurm.run("srun", *TWO_BY_TWO, "python", "-c", ADD_UP + AGAIN)
    lines = [*expected("Slurm"), *[f"{4**6} after five more groups"] * 4]
    assert lines_of(finished) == sorted(lines)


@pytest.mark.slow
def test_srun_of_torchrun(slurm):
    agents = ("srun", "-N", "2", "--tasks-per-node", "1")
    rendezvous = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=n1:29400")
    torchrun = ("torchrun", *rendezvous, "--nproc-per-node=2", "--no-python")
    lines = lines_of(slurm.run(*agents, *torchrun, *RANK))
    # The agents agree on the order of their nodes.
    orders = (HOSTS, HOSTS[::-1])
    assert lines in [expected("environment", hosts) for hosts in orders]


# ---- batch scripts


def test_a_batch_script_is_no_task(slurm, tmp_path):
    """Slurm sets the variables of a task in a batch script too."""
    variables = "say(os.environ['SLURM_PROCID'] + ' of ' + os.environ['SLURM_NTASKS'])\n"
    finished = submit(slurm, tmp_path, "python", "-c", ADD_UP + variables)
    assert lines_of(finished) == ["0 of 1, 0 of 1 on n1, by none: 1", "0 of 4"]


@pytest.mark.slow
def test_mpich_in_a_batch_script(slurm, tmp_path):
    finished = submit(slurm, tmp_path, "mpiexec.hydra", "-n", "4", *RANK)
    assert lines_of(finished) == expected("hydra")


@pytest.mark.slow
def test_open_mpi_in_a_batch_script(slurm, tmp_path):
    finished = submit(slurm, tmp_path, "mpirun.openmpi", "-n", "4", *RANK, **AS_ROOT)
    assert lines_of(finished) == expected("Open MPI")


# ---- failures

STAY = """
here = Path(sys.argv[1])
(here / os.environ["SLURM_JOB_ID"]).touch()
end = time.monotonic() + 60
while len(list(here.iterdir())) < 2 and time.monotonic() < end:
    time.sleep(0.1)
say(f"{len(list(here.iterdir()))} jobs are here")
dist.all_reduce(x)
"""


@pytest.mark.slow
def test_two_concurrent_jobs(slurm, tmp_path):
    words = ("srun", *TWO_BY_TWO, "python", "-c", ADD_UP + STAY, str(tmp_path))
    lines = sorted([*expected("Slurm"), *["2 jobs are here"] * 4])
    for job in [slurm.start(*words) for _ in range(2)]:
        assert lines_of(slurm.wait_for(job)) == lines


TAKE_PORT = """
import os, socket, subprocess, sys
from torch.distributed import TCPStore
from torch_ccl.rendezvous import port_of_job

port = port_of_job({{**os.environ, "SLURM_STEP_ID": "0"}})
listener = {listener}
print(port, flush=True)
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
LISTENERS = {
    "a program": "socket.create_server(('', port))",
    "another job": "TCPStore('127.0.0.1', port, is_master=True, wait_for_workers=False)",
}


@pytest.mark.slow
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_port_that_is_taken(slurm, tmp_path, listener):
    """The port that is taken is that of the batch script's first step."""
    script = TAKE_PORT.format(listener=LISTENERS[listener])
    code, out, err = submit(slurm, tmp_path, "python", "-c", script, "srun", *RANK)
    says = f"port {out.strip()}, which is derived from the job's number, is in use on n1"
    assert code != 0 and err.count(says) == 1, err


@pytest.mark.slow
def test_arbitrary_distribution_is_refused(slurm, rank_0_elsewhere):
    options, environment = rank_0_elsewhere
    finished = slurm.run("srun", *options, *RANK, **environment)
    says = "ValueError: with --distribution=arbitrary the host of rank 0 is not known: "
    assert finished.code != 0 and finished.err.count(says) == 4, finished.err


FAILURES = {
    "by an error": "raise RuntimeError('rank 2 fails')",
    "by a signal": "os.kill(os.getpid(), 9)",
}
ONE_ENDS = """
if env.rank == 2:
    {failure}
while True:
    dist.all_reduce(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
def test_failed_rank_ends_the_step(slurm, failure):
    script = ADD_UP + ONE_ENDS.format(failure=FAILURES[failure])
    finished = slurm.run("srun", *TWO_BY_TWO, "python", "-c", script)
    assert finished.code != 0 and sorted(finished.out.splitlines()) == expected("Slurm")


# ---- a job as users of a cluster submit it

OPTIONS = ("-p", PARTITION, f"--constraint={FEATURE}", "-c", "2")


def check_output(text: str) -> None:
    """Every rank prints one line; the settings follow after the line of rank 0."""
    lines = text.splitlines()
    hello = [line for line in lines if " rank " in line]
    assert sorted(hello) == [f"{host}: rank {rank} of 4" for rank, host in enumerate(HOSTS)]
    settings = [line for line in lines[lines.index("n1: rank 0 of 4") :] if line not in hello]
    assert len(lines) == len(hello) + len(settings)
    assert settings[0] == "OMP_NUM_THREADS=2" and len(settings) > 20
    assert all(line.startswith("CCL_") for line in settings[1:])


def write_program(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.fixture
def submit_directory(tmp_path):
    for name in ("torch_test.py", "batch.sh"):
        shutil.copy(SCRIPTS / name, tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.hydra"])
def test_batch_sh(slurm, submit_directory, program):
    programs = submit_directory / "bin"
    write_program(programs / "mpirun", f'exec {program} "$@"')
    path = f"{programs}:{slurm.environment()['PATH']}"
    job = slurm.submit(*OPTIONS, "batch.sh", cwd=submit_directory, PATH=path, **AS_ROOT)
    printed = (submit_directory / "torch_test.out").read_text()
    assert job.code == 0, printed
    check_output(printed)
    wanted = {"JobName": "torch_test", "NumNodes": "2", "TresPerNode": "gres:gpu:volta:2"}
    wanted |= {"Partition": PARTITION, "Features": FEATURE, "CPUs/Task": "2"}
    assert wanted.items() <= job.fields.items(), job.fields


@pytest.mark.slow
def test_batch_sh_loads_modules(slurm, submit_directory):
    """batch.sh loads modules on clusters that have them; mpirun only prints its arguments here."""
    programs = submit_directory / "bin"
    write_program(programs / "module", 'echo "module $*"')
    write_program(programs / "mpirun", 'echo "$*"')
    path = f"{programs}:{slurm.environment()['PATH']}"
    assert slurm.submit("batch.sh", cwd=submit_directory, PATH=path).code == 0
    printed = (submit_directory / "torch_test.out").read_text().splitlines()
    assert printed == ["module load anaconda", "module load mpi", "python torch_test.py"]


@pytest.mark.slow
def test_torch_test_by_srun(slurm, submit_directory):
    words = ("srun", *TWO_BY_TWO, "--gres=gpu:volta:2", *OPTIONS, "-o", "torch_test.out")
    script = ("python", "torch_test.py")
    finished = slurm.run(*words, *script, cwd=submit_directory, OMP_NUM_THREADS="2")
    assert finished.code == 0, finished.err
    check_output((submit_directory / "torch_test.out").read_text())


# ---- the cluster itself


@pytest.mark.slow
def test_no_leftovers():
    """Nothing is left even if the test fails while its job runs."""
    with pytest.raises(KeyError), cluster(nodes=1) as slurm:
        hosts = [slurm.login, *slurm.nodes]
        slurm.start("srun", "sleep", "600")
        while b"sleep" not in commands(slurm.nodes[0].pids()):
            time.sleep(0.1)
        pids = [pid for host in hosts for pid in host.pids()]
        raise KeyError
    assert not slurm.directory.exists() and not any(Path(host.path).exists() for host in hosts)
    assert len(pids) > 5 and not commands(pids)


def commands(pids: list[int]) -> set[bytes]:
    """The commands of those processes that still run."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0])
    return found - {b""}
