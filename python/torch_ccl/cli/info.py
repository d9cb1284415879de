"""`torch-ccl info`: versions, machine, settings and algorithms, as the library sees them."""

import json
import os
import platform
from typing import Annotated, Any, NoReturn

import typer

from torch_ccl import libtccl
from torch_ccl.cli.tables import print_table

NO_LIMIT = 1 << 63


def source_of(row: libtccl.AlgorithmRule) -> str:
    return "environment" if row["by_setting"] else "table" if row["applies"] else "setting only"


def byte_range(row: libtccl.AlgorithmRule) -> str:
    if not row["applies"]:
        return "-"
    last = "max" if row["to_bytes"] >= NO_LIMIT else str(row["to_bytes"])
    return f"{row['from_bytes']}-{last}"


def print_algorithms(rows: list[libtccl.AlgorithmRule]) -> None:
    columns = (
        "operation",
        "algorithm",
        "hosts",
        "bytes",
        "ranks",
        "dtypes",
        "from",
        "description",
    )
    cells = [
        (
            row["operation"],
            row["algorithm"],
            "several" if row["several_hosts"] else "one",
            byte_range(row),
            f"{row['from_ranks']} or more" if row["applies"] else "-",
            row["dtypes"],
            source_of(row),
            row["doc"],
        )
        for row in rows
    ]
    print_table("algorithms; the last matching row of an operation applies", columns, cells)


def versions() -> dict[str, str]:
    from importlib.metadata import version

    import torch_ccl
    from torch_ccl.cli import fabric

    libfabric = fabric.query()
    return {
        "torch-ccl": version("torch_ccl"),
        "installed in": torch_ccl.cwd,
        "torch": version("torch"),
        "Python": platform.python_version(),
        "libfabric": libfabric.get("version", "not found"),
        "kernel": platform.release(),
    }


def processor(kernels: str) -> dict[str, Any]:
    from torch_ccl.child_environment import usable_cpus
    from torch_ccl.cli.machine import cpu_model, instruction_sets, limits, topology

    return {
        "model": cpu_model(),
        "instruction_set": kernels,
        "instruction_sets": instruction_sets(),
        **topology(usable_cpus()),
        "cgroup": limits()._asdict(),
    }


def settings_facts(library: libtccl.Info) -> dict[str, Any]:
    from torch_ccl.cli.settings import ignored_settings, settings_with_source, unknown_settings

    table = libtccl.settings_table()
    return {
        "settings": settings_with_source(library["settings"], os.environ),
        "ignored_settings": ignored_settings(os.environ, table),
        "unknown_settings": unknown_settings(os.environ, table),
    }


def gather_facts(library: libtccl.Info) -> dict[str, Any]:
    return {
        "versions": versions(),
        "processor": processor(library["kernels"]),
        **settings_facts(library),
        "algorithms": library["algorithms"],
    }


def gib_text(count: int | None) -> str:
    return "no limit" if count is None else f"{count / (1 << 30):.1f} GiB"


def processor_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from torch_ccl.agent.cores import format_cpu_list

    nodes = ", ".join(f"{node}: {cpus}" for node, cpus in facts["numa_nodes"].items())
    cpus, cpuset = facts["cgroup"]["cpus"], facts["cgroup"]["cpuset"]
    return [
        ("processor", facts["model"]),
        (
            "instruction set",
            f"{facts['instruction_set']} (supported: {', '.join(facts['instruction_sets'])})",
        ),
        ("sockets", str(facts["sockets"])),
        ("NUMA nodes", f"{len(facts['numa_nodes'])} ({nodes})" if nodes else "not known"),
        ("cores, CPUs", f"{facts['cores']}, {facts['cpus']}"),
        (
            "this process",
            f"may use CPUs {facts['usable_cpus']}, {facts['usable_cores']} cores",
        ),
        ("cgroup cpuset", "none" if cpuset is None else format_cpu_list(cpuset)),
        ("cgroup CPU quota", "no limit" if cpus is None else f"{cpus:g} CPUs"),
        ("cgroup memory", gib_text(facts["cgroup"]["memory_bytes"])),
    ]


def print_settings(facts: dict[str, Any]) -> None:
    rows = [(row["name"], row["value"], row["from"]) for row in facts["settings"]]
    print_table("settings", ("name", "value", "from"), rows)
    if ignored := facts["ignored_settings"]:
        title = "oneCCL's variables without effect"
        print_table(title, ("name", "why"), list(ignored.items()))
    if unknown := facts["unknown_settings"]:
        title = "not settings of this library (ignored)"
        print_table(title, ("name", "most similar setting"), list(unknown.items()))


def print_facts(facts: dict[str, Any]) -> None:
    print_table("versions", ("what", "version"), list(facts["versions"].items()))
    print_table("machine", ("what", "value"), processor_rows(facts["processor"]))
    print_settings(facts)
    typer.echo("torch-ccl info --algorithms shows which algorithm runs when")


def fail(problem: RuntimeError) -> NoReturn:
    typer.echo(f"torch-ccl info: {problem}", err=True)
    raise typer.Exit(1)


def info(
    settings: Annotated[bool, typer.Option("--settings", help="Show only the settings.")] = False,
    algorithms: Annotated[
        bool, typer.Option("--algorithms", help="Show only the table of algorithms.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show versions, machine and settings, or which algorithm runs when."""
    try:
        library = libtccl.info()
    except (libtccl.Error, libtccl.LoadError) as problem:
        fail(problem)
    if as_json:
        typer.echo(json.dumps(gather_facts(library), indent=1))
    elif algorithms:
        print_algorithms(library["algorithms"])
    elif settings:
        print_settings(settings_facts(library))
    else:
        print_facts(gather_facts(library))
