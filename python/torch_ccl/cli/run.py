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

#: What ranks on other hosts get of our environment: names, and beginnings of names. Ranks here get
#: all of it.
PASSED_NAMES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")
PASSED_BEGINNINGS = (
    *("CCL_", "FI_", "TORCH_", "PYTHON"),
    *("OMP_", "KMP_", "GOMP_", "MKL_", "ONEDNN_"),
)


def refuse(reason: str) -> NoReturn:
    typer.echo(f"torch-ccl run: {reason}", err=True)
    raise typer.Exit(2)


def lay_out(ranks: int, hosts: list[str]) -> dict[str, list[int]]:
    """Blocks of ranks, the first ones longer by one; a host that is named twice has two blocks."""
    length, longer = divmod(ranks, len(hosts))
    layout: dict[str, list[int]] = {}
    first = 0
    for place, host in enumerate(hosts):
        last = first + length + (place < longer)
        layout.setdefault(host, []).extend(range(first, last))
        first = last
    return {host: own for host, own in layout.items() if own}


def parse_hosts(text: str) -> list[str]:
    hosts = [host.strip() for host in text.split(",")]
    for host in hosts:
        if not host or host.startswith("-"):
            refuse(f'--hosts {text}: "{host}" is not a host')
    return hosts


def with_one_name_for_this_host(hosts: list[str]) -> list[str]:
    """The best for others, so that its ranks share its cores, whatever it was called."""
    from torch_ccl.cli.host_agent import is_here
    from torch_ccl.launchers import LOOPBACK, is_loopback

    here = [host for host in dict.fromkeys(hosts) if is_here(host)]
    name = next((host for host in here if not is_loopback(host)), LOOPBACK)
    return [name if host in here else host for host in hosts]


def command_line(command: list[str], module: bool, python: bool) -> list[str]:
    program = command[0]
    if module:
        return [sys.executable, "-m", *command]
    if python:
        if not Path(program).is_file():
            refuse(f"there is no script {program}")
        return [sys.executable, *command]
    if shutil.which(program) is None:
        refuse(f"there is no program {program}")
    return command


def given_variables(names: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Of --env NAME or --env NAME=VALUE."""
    given = {}
    for text in names:
        name, assigned, value = text.partition("=")
        if not name or not (assigned or name in environment):
            refuse(f"--env {text}: there is no such variable; NAME=VALUE sets one")
        given[name] = value if assigned else environment[name]
    return given


def passed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name in PASSED_NAMES or name.startswith(PASSED_BEGINNINGS)
    }


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT [ARGUMENT]...", help="what every rank runs")
    ],
    ranks: Annotated[int, typer.Option("-n", "--ranks", help="how many ranks")],
    hosts: Annotated[
        str, typer.Option(help="such as a,b: ranks in blocks, started by ssh; default: this host")
    ] = "",
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as for python -m")
    ] = False,
    python: Annotated[
        bool, typer.Option("--python/--no-python", help="SCRIPT is for Python, or any program")
    ] = True,
    pin: Annotated[
        bool, typer.Option("--pin/--no-pin", help="each rank on cores of its own")
    ] = True,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME=VALUE, for ranks on all hosts; may be repeated"),
    ] = None,
    rsh: Annotated[
        str, typer.Option(envvar="CCL_RSH", help="starts a command on a host")
    ] = DEFAULT_RSH,
) -> None:
    """Start SCRIPT on several ranks, show what they write, and end all of them if one fails."""
    from torch_ccl.cli.runner import Job, Runner, Terminal
    from torch_ccl.inheritance import cpus_of_this_process
    from torch_ccl.launchers import LOOPBACK

    if ranks < 1:
        refuse(f"-n {ranks}: there must be at least one rank")
    given = given_variables(env or [], os.environ)
    job = Job(
        words=command_line(command, module, python),
        hosts=lay_out(ranks, with_one_name_for_this_host(parse_hosts(hosts or LOOPBACK))),
        rsh=shlex.split(rsh),
        environment=given,
        environment_elsewhere={**passed_variables(os.environ), **given},
        pin=pin,
    )
    os.environ.pop("CCL_RSH", None)  # no setting of the library, which would say so
    os.sched_setaffinity(0, cpus_of_this_process())
    raise typer.Exit(Runner(job, Terminal()).run())
