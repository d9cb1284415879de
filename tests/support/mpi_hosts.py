"""Runs MPI command lines on the first of several virtual hosts; ranks start on all of them.

MPI starts processes on other hosts by ssh. A script takes the place of ssh: it enters the virtual
host with the small environment of a login shell. The command line is unchanged. MASTER_ADDR and
MASTER_PORT are not set: the ranks rendezvous through the launcher.
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

#: Without these Open MPI refuses to run as root.
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
        'while [ "${1#-}" != "$1" ]; do shift; done',  # hydra passes options without values
        "host=$1; shift",
        'case "$host" in',
        *cases,
        '*) echo "there is no host $host" >&2; exit 255 ;;',
        "esac",
    ]
    path.write_text("\n".join(script) + "\n")
    path.chmod(0o755)


def write_launchers(directory: Path, mpiexec: str) -> None:
    """Writes mpiexec and mpirun: the names in PATH may belong to another MPI."""
    directory.mkdir()
    for name in ("mpiexec", "mpiexec.hydra", "mpirun"):
        path = directory / name
        path.write_text(f'#!/bin/sh\nexec {shutil.which(mpiexec)} "$@"\n')
        path.chmod(0o755)


def named_hosts(commands: str) -> list[str] | None:
    match = re.search(r"-hosts (\S+)", commands)  # Open MPI has another option
    return match[1].split(",") if match else None


def run_over_hosts(
    count: int, commands: str, files: dict[str, str], mpiexec: str = MPICH
) -> tuple[list[str], list[str], str]:
    """Runs shell commands in a directory with the files and a hostfile; mpirun is `mpiexec`.

    Returns the host names, the lines of stdout, and stderr. The hosts get the names that the
    commands use, if any. The exit code must be 0, within BOUND_S.
    """
    with (
        tempfile.TemporaryDirectory() as name,
        virtual_hosts(count, names=named_hosts(commands)) as hosts,
    ):
        directory = Path(name)
        for file, text in files.items():
            (directory / file).write_text(text)
        (directory / "hostfile").write_text("".join(f"{host.address}\n" for host in hosts))
        (directory / ".local").symlink_to(torch_ccl.cwd)  # the documents' installation path
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
            raise AssertionError(f"{commands}\nstill runs after {BOUND_S} s") from None
        assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
        return [host.name for host in hosts], out.splitlines(), err
