"""A Slurm cluster on one machine, for tests of launchers. Needs root, iproute2 and Debian's Slurm.

    with cluster(nodes=2) as slurm:
        finished = slurm.run("srun", "-N", "2", "--tasks-per-node", "2", "hostname")
        assert finished.code == 0 and "n2" in finished.out

Every node is a virtual host (virtual_hosts.py): n1, n2, ... A further host, login, runs the
controller; jobs are submitted there. The hosts' networks are isolated, so Slurm's default ports are
free and two clusters do not interfere. All files are in a temporary directory, to which SLURM_CONF
points; /etc is not changed. At the end all daemons and jobs are killed and all files removed.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.launchers import clean_environment
from support.virtual_hosts import Host, virtual_hosts

READY_S = 30.0
BOUND_S = 100.0
PARTITION = "main"
FEATURE = "volta"
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")  # states of a job

# More CPUs than the machine has; the device files of the GPUs are some that every machine has.
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={login}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmdSpoolDir={directory}/spool-%n
TmpFS={directory}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={nodes} CPUs=16 Gres=gpu:volta:2 Feature={feature}
PartitionName={partition} Nodes=ALL Default=YES
"""
GRES_CONFIGURATION = "Name=gpu Type=volta File=/dev/null,/dev/zero\n"


class SlurmResult(NamedTuple):
    code: int
    out: str
    err: str


class SlurmJob(NamedTuple):
    code: int
    fields: dict[str, str]  # as `scontrol show job` calls them


def wait_until(condition: Callable[[], bool], bound_s: float) -> bool:
    end = time.monotonic() + bound_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@dataclass(frozen=True)
class Cluster:
    """A command that exceeds its time limit raises AssertionError, and all jobs are cancelled."""

    login: Host
    nodes: list[Host]
    directory: Path

    def environment(self, **more: str) -> dict[str, str]:
        """The environment in which jobs are submitted; Slurm passes it to the job."""
        own = {
            "SLURM_CONF": str(self.configuration),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns about addresses without a name
        }
        return clean_environment(**{**own, **more})

    @property
    def configuration(self) -> Path:
        return self.directory / "slurm.conf"

    def start(self, *words: str, cwd: Path | None = None, **more: str) -> subprocess.Popen:
        """Starts a command on the host login; `more` is added to the environment."""
        return self.login.start(
            ["env", f"--chdir={cwd or Path.cwd()}", *words],
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, process: subprocess.Popen, bound_s: float = BOUND_S) -> SlurmResult:
        try:
            out, err = process.communicate(timeout=bound_s)
        except subprocess.TimeoutExpired:
            self._cancel_jobs()
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"still running after {bound_s:g} s\n{out}\n{err}") from None
        return SlurmResult(process.returncode, out, err)

    def run(self, *words: str, cwd: Path | None = None, **more: str) -> SlurmResult:
        return self.wait_for(self.start(*words, cwd=cwd, **more))

    def submit(self, *words: str, cwd: Path | None = None, **more: str) -> SlurmJob:
        """Runs a batch script to its end; `words` are options of sbatch and the script."""
        sbatch = self.run("sbatch", "--parsable", *words, cwd=cwd, **more)
        assert sbatch.code == 0, sbatch.err
        fields: dict[str, str] = {}

        def has_ended() -> bool:
            shown = self.run("scontrol", "show", "job", sbatch.out.strip()).out
            fields.update(word.split("=", 1) for word in shown.split() if "=" in word)
            return fields["JobState"] not in UNFINISHED

        # Not sbatch --wait, which polls after 2 s, 10 s and 42 s.
        if not wait_until(has_ended, BOUND_S):
            self._cancel_jobs()
            raise AssertionError(f"still running after {BOUND_S:g} s: {fields}")
        code, signal_number = map(int, fields["ExitCode"].split(":"))
        return SlurmJob(code or signal_number, fields)

    def _cancel_jobs(self) -> None:
        self.run("scancel", f"--user={os.getuid()}")

    # ---- start

    def configure(self) -> None:
        self.directory.chmod(0o755)  # munged requires that all users can reach its socket
        key = self.directory / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(64))
        of_nodes = [f"{kind}-{node.name}" for kind in ("spool", "tmp") for node in self.nodes]
        for name in ("state", *of_nodes):
            (self.directory / name).mkdir()
        values = {
            "directory": self.directory,
            "login": self.login.name,
            "nodes": ",".join(node.name for node in self.nodes),
            "feature": FEATURE,
            "partition": PARTITION,
        }
        self.configuration.write_text(CONFIGURATION.format(**values))
        (self.directory / "gres.conf").write_text(GRES_CONFIGURATION)

    def start_munge(self) -> None:
        socket = self.directory / "munge.socket"
        options = {"socket": socket, "key-file": "munge.key", "seed-file": "munge.seed"}
        options |= {"pid-file": "munge.pid", "log-file": "munge.log"}
        words = [f"--{name}={self.directory / value}" for name, value in options.items()]
        self._start_daemon(self.login, "munged", "--foreground", *words)
        self._wait_until(socket.exists, "munged")

    def start_slurm(self) -> None:
        self._start_daemon(self.login, "slurmctld", "-D")
        # A node that finds no controller retries only seconds later.
        self._wait_until(lambda: "is UP" in self.run("scontrol", "ping").out, "slurmctld")
        for node in self.nodes:
            self._start_daemon(node, "slurmd", "-D")
        self._wait_until(self._is_idle, "slurmd")

    def _is_idle(self) -> bool:
        states = self.run("sinfo", "--noheader", "--Node", "--format=%T").out.split()
        return states == ["idle"] * len(self.nodes)

    def _start_daemon(self, host: Host, *words: str) -> None:
        die_with_parent = ["setpriv", "--pdeathsig", "KILL"]
        with (self.directory / f"{words[0]}-{host.name}.log").open("w") as log:
            host.start(
                [*die_with_parent, *words],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_until(self, is_ready: Callable[[], bool], daemon: str) -> None:
        if not wait_until(is_ready, READY_S):
            logs = [path.read_text() for path in self.directory.glob("*.log")]
            raise RuntimeError(f"{daemon} is not ready after {READY_S:g} s:\n" + "\n".join(logs))


def kill_all(host: Host) -> None:
    """Kills all processes on the host, also those that start meanwhile."""

    def is_empty() -> bool:
        pids = set(host.pids()) - {host.namespace_process.pid}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(is_empty, READY_S)


@contextlib.contextmanager
def cluster(nodes: int = 2) -> Iterator[Cluster]:
    names = ["login", *(f"n{k}" for k in range(1, nodes + 1))]
    with (
        tempfile.TemporaryDirectory(prefix="tccl-slurm-") as directory,
        virtual_hosts(len(names), names=names) as hosts,
    ):
        slurm = Cluster(hosts[0], hosts[1:], Path(directory))
        try:
            slurm.configure()
            slurm.start_munge()
            slurm.start_slurm()
            yield slurm
        finally:
            for host in hosts:
                kill_all(host)
