"""`torch-ccl run`: starts a script on several ranks, on this host or on several."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer

DEFAULT_RSH = (
    "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
)

#: Variables that ranks on other hosts get, by name and by prefix. Ranks on this host get all.
FORWARDED_NAMES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")
FORWARDED_PREFIXES = (
    *("CCL_", "FI_", "TORCH_", "PYTHON"),
    *("OMP_", "KMP_", "GOMP_", "MKL_", "ONEDNN_"),
)


def fail(reason: str) -> NoReturn:
    typer.echo(f"torch-ccl run: {reason}", err=True)
    raise typer.Exit(2)


def assign_ranks(ranks: int, hosts: list[str]) -> dict[str, list[int]]:
    """Blocks of ranks, the first ones longer by one; a host named twice gets two blocks."""
    length, longer = divmod(ranks, len(hosts))
    assigned: dict[str, list[int]] = {}
    first = 0
    for index, host in enumerate(hosts):
        last = first + length + (index < longer)
        assigned.setdefault(host, []).extend(range(first, last))
        first = last
    return {host: own for host, own in assigned.items() if own}


def parse_hosts(text: str) -> list[str]:
    hosts = [host.strip() for host in text.split(",")]
    for host in hosts:
        if not host or host.startswith("-"):
            fail(f'--hosts {text}: "{host}" is not a host')
    return hosts


def merge_names_of_this_host(hosts: list[str]) -> list[str]:
    """Use one name for this host, not a loopback name if there is another: its ranks share its
    cores, however it was named."""
    from torch_ccl.cli.host_agent import is_this_host
    from torch_ccl.launchers import LOOPBACK, is_loopback

    local = [host for host in dict.fromkeys(hosts) if is_this_host(host)]
    name = next((host for host in local if not is_loopback(host)), LOOPBACK)
    return [name if host in local else host for host in hosts]


def rank_command(command: list[str], module: bool, python: bool) -> list[str]:
    program = command[0]
    if module:
        return [sys.executable, "-m", *command]
    if python:
        if not Path(program).is_file():
            fail(f"there is no script {program}")
        return [sys.executable, *command]
    if shutil.which(program) is None:
        fail(f"there is no program {program}")
    return command


def parse_variables(words: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of --env NAME and --env NAME=VALUE."""
    variables = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not (equals or name in environment):
            fail(f"--env {word}: there is no such variable; NAME=VALUE sets one")
        variables[name] = value if equals else environment[name]
    return variables


def forwarded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name in FORWARDED_NAMES or name.startswith(FORWARDED_PREFIXES)
    }


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGUMENT]...", help="What every rank runs.")
    ],
    ranks: Annotated[int, typer.Option("-n", "--ranks", help="Number of ranks.")],
    hosts: Annotated[
        str,
        typer.Option(
            help="Such as a,b: ranks are assigned in blocks and started through ssh. "
            "Default: this host."
        ),
    ] = "",
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m.")
    ] = False,
    python: Annotated[
        bool,
        typer.Option(
            "--python/--no-python",
            help="Run SCRIPT with this Python, or run it as a program.",
        ),
    ] = True,
    pin: Annotated[
        bool, typer.Option("--pin/--no-pin", help="Pin each rank to cores of its own.")
    ] = True,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME=VALUE for ranks on all hosts; may be repeated."),
    ] = None,
    rsh: Annotated[
        str,
        typer.Option(
            envvar="CCL_RSH",
            help="Command that starts the agent on another host, such as ssh -p 2222.",
        ),
    ] = DEFAULT_RSH,
) -> None:
    """Start SCRIPT on several ranks, show their output, and end all of them if one fails."""
    from torch_ccl.child_environment import usable_cpus
    from torch_ccl.cli.job import Job, Terminal
    from torch_ccl.cli.runner import Runner
    from torch_ccl.launchers import LOOPBACK

    if ranks < 1:
        fail(f"-n {ranks}: there must be at least one rank")
    variables = parse_variables(env or [], os.environ)
    job = Job(
        command=rank_command(command, module, python),
        hosts=assign_ranks(ranks, merge_names_of_this_host(parse_hosts(hosts or LOOPBACK))),
        rsh=shlex.split(rsh),
        environment=variables,
        remote_environment={**forwarded_variables(os.environ), **variables},
        pin=pin,
    )
    os.sched_setaffinity(0, usable_cpus())
    raise typer.Exit(Runner(job, Terminal()).run())
