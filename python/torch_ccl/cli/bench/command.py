"""The command line of `torch-ccl bench`.

Each kind of benchmark is imported when it is chosen: they import torch and numpy.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from torch_ccl.cli.bench.cases import OPERATIONS, Case, goal_cases, make_cases
from torch_ccl.cli.bench.summary import parse_size

PROGRAMS = ("decode", "ddp_step", "fsdp2_step")


def fail(message: str) -> typer.Exit:
    typer.echo(f"torch-ccl bench: {message}", err=True)
    return typer.Exit(1)


def require_modules(*names: str) -> None:
    """Exits if a package of the extra `bench` is not installed."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise fail(f"{' and '.join(missing)} not installed: run pip install 'torch-ccl[bench]'")


def choose(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    """The names of a comma-separated list, each of which must be known."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{option}: {unknown[0]!r} is none of {', '.join(known)}")
    return names


def parse_numbers(option: str, text: str, parse: Callable[[str], int]) -> list[int]:
    try:
        return [parse(number) for number in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option}: {text!r} is not a list of numbers") from None


def parse_cases(ops: list[str], sizes: str, dtypes: list[str], ranks: str) -> list[Case]:
    sizes_bytes = parse_numbers("--sizes", sizes, parse_size)
    counts = parse_numbers("--ranks", ranks, int)
    return [case for count in counts for case in make_cases(ops, sizes_bytes, dtypes, count)]


def bench(
    ops: Annotated[
        str | None,
        typer.Option(help=f"of {', '.join(OPERATIONS)} (default all_reduce; four with --peers)"),
    ] = None,
    sizes: Annotated[str, typer.Option(help="bytes, such as 8,4K,1M")] = "8,4K,64K,1M,16M,64M",
    ranks: Annotated[str, typer.Option(help="numbers of ranks, such as 2,4")] = "2",
    dtypes: Annotated[str, typer.Option(help="such as float32,bfloat16")] = "float32",
    backends: Annotated[
        str, typer.Option(help="the others are compared with the first")
    ] = "ccl,gloo",
    alternations: Annotated[int, typer.Option(help="measurements of each backend")] = 5,
    goals: Annotated[
        bool,
        typer.Option("--goals", help="show the project's goals; alone: every case that has one"),
    ] = False,
    peers: Annotated[
        str | None, typer.Option(help="libtccl against mpich,openmpi, in C++ without torch")
    ] = None,
    peers_dir: Annotated[Path, typer.Option(help="where the MPI libraries are installed")] = Path(
        "build/peers"
    ),
    programs: Annotated[
        str | None, typer.Option(help=f"whole programs, of {', '.join(PROGRAMS)}")
    ] = None,
    footprint: Annotated[
        bool,
        typer.Option("--footprint", help="overhead, zero copy, waiting, memory, start-up"),
    ] = False,
    calls: Annotated[
        bool,
        typer.Option("--calls", help="small calls in a loop, with and without fast calls"),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the figures to this file")
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", help="NAME.svg draws NAME-light.svg and NAME-dark.svg"),
    ] = None,
) -> None:
    """Compare the speed of backends on this machine; every result is checked."""
    if programs:
        from torch_ccl.cli.bench.programs import bench_programs

        names = choose("--programs", programs, PROGRAMS)
        bench_programs(names, alternations, goals, json_file)
    elif footprint:
        require_modules("numpy")
        from torch_ccl.cli.bench.footprint import bench_footprint

        bench_footprint(alternations, goals, json_file)
    elif calls:
        from torch_ccl.cli.bench.calls import bench_calls

        bench_calls(alternations, goals, json_file)
    elif peers:
        from torch_ccl.cli.bench import peers as mpi

        chosen = choose("--ops", ops or ",".join(mpi.OPERATIONS), mpi.OPERATIONS)
        cases = parse_cases(chosen, sizes, ["float32"], ranks)
        libraries = choose("--peers", peers, mpi.LIBRARIES)
        try:
            mpi.bench_peers(libraries, peers_dir, cases, alternations, goals, json_file)
        except (mpi.PeerError, OSError) as error:
            raise fail(str(error)) from error
    else:
        require_modules("numpy", *(["matplotlib"] if plot_file else []))
        from torch_ccl.cli.bench.collectives import bench_collectives

        chosen = choose("--ops", ops or "all_reduce", OPERATIONS)
        cases = parse_cases(chosen, sizes, dtypes.split(","), ranks)
        if goals:
            cases = goal_cases()
        if plot_file and not any(case.bytes for case in cases):
            raise typer.BadParameter("--plot: a barrier has no sizes to plot")
        names = backends.split(",")
        bench_collectives(cases, names, alternations, goals, json_file, plot_file)
