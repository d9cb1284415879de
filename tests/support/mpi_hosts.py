"""Runs commands that start ranks over several hosts, on the first of several virtual hosts.

MPI starts its processes on other hosts by ssh; here a script stands for it that enters the host,
with as little of the environment as a login would bring. The command line stays as it is, and
nothing says where the ranks meet: they agree on that through the launcher.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch_ccl

from support.commands import ROOT
from support.launchers import BOUND_S, MPICH, clean_environment
from support.virtual_hosts import NETWORK, Host, virtual_hosts

__all__ = ["AS_ROOT", "NETWORK", "run_over_hosts", "write_launchers"]

#: Open MPI refuses root else.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SCRIPTS = ROOT / "tests/compat/scripts"


def write_ssh(path: Path, hosts: list[Host]) -> None:
    login = ["env", "-i", f"HOME={Path.home()}", "PATH=/usr/bin:/bin", "/bin/sh", "-c"]
    cases = [
        f'{host.name}|{host.address}) exec {shlex.join(host.inside(login))} "$*" ;;'
        for host in hosts
    ]
    script = [
        "#!/bin/sh",
        'while [ "${1#-}" != "$1" ]; do shift; done',  # hydra gives options without values
        "host=$1; shift",
        'case "$host" in',
        *cases,
        '*) echo "there is no host $host" >&2; exit 255 ;;',
        "esac",
    ]
    path.write_text("\n".join(script) + "\n")
    path.chmod(0o755)


def write_launchers(directory: Path, mpiexec: str) -> None:
    """Where several MPIs are installed, the bare names may be another one's."""
    directory.mkdir()
    for name in ("mpiexec", "mpiexec.hydra", "mpirun"):
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {shutil.which(mpiexec)} "$@"\n')
        path.chmod(0o755)


def named_hosts(commands: str) -> list[str] | None:
    match = re.search(r"-hosts (\S+)", commands)  # Open MPI's option has another name
    return match[1].split(",") if match else None


def run_over_hosts(
    count: int, commands: str, files: dict[str, str], mpiexec: str = MPICH
) -> tuple[list[str], list[str], str]:
    """Runs shell commands where the files and a hostfile are; MPI's names lead to `mpiexec`.

    Returns the hosts' names, the lines on stdout and what is on stderr. The hosts have the names
    in the commands, if there are any. All must end well, within BOUND_S.
    """
    with (
        tempfile.TemporaryDirectory() as name,
        virtual_hosts(count, names=named_hosts(commands)) as hosts,
    ):
        directory = Path(name)
        for file, text in files.items():
            (directory / file).write_text(text)
        (directory / "hostfile").write_text("".join(f"{host.address}\n" for host in hosts))
        (directory / ".local").symlink_to(torch_ccl.cwd)  # where a document may have installed us
        write_ssh(directory / "ssh", hosts)
        write_launchers(directory / "bin", mpiexec)
        environment = clean_environment(
            HOME=name,
            PATH=f"{directory}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            PYTHONPATH=str(SCRIPTS),
            CONDA_PREFIX=sys.prefix,
            HYDRA_LAUNCHER="ssh",
            HYDRA_LAUNCHER_EXEC=str(directory / "ssh"),
            OMPI_MCA_plm_rsh_agent=str(directory / "ssh"),
            OMPI_MCA_rmaps_base_oversubscribe="1",
            **AS_ROOT,
            I_MPI_HYDRA_BOOTSTRAP="ssh",
            I_MPI_HYDRA_BOOTSTRAP_EXEC=str(directory / "ssh"),
        )
        process = hosts[0].start(
            ["bash", "-ec", f"cd {name}\n{commands}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=BOUND_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{commands}\nhas not ended in {BOUND_S} s") from None
        assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
        return [host.name for host in hosts], out.splitlines(), err
