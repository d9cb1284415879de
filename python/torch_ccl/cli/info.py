"""`torch-ccl info`: what the library does on this machine, with this environment."""

import json
import os
import platform
from typing import Annotated

import typer

NO_LIMIT = 1 << 63


def readable_range(row: dict) -> str:
    last = "max" if row["to_bytes"] >= NO_LIMIT else str(row["to_bytes"])
    return f"{row['from_bytes']}-{last}"


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)


def print_algorithms(rows: list[dict]) -> None:
    columns = (
        "operation",
        "algorithm",
        "hosts",
        "bytes",
        "ranks",
        "dtypes",
        "from",
        "how it works",
    )
    cells = [
        (
            row["operation"],
            row["algorithm"],
            "several" if row["several_hosts"] else "one",
            readable_range(row),
            f"{row['from_ranks']} or more",
            row["dtypes"],
            "environment" if row["by_setting"] else "table",
            row["doc"],
        )
        for row in rows
    ]
    print_table("which algorithm runs; of one operation the last row that fits", columns, cells)


def versions() -> dict[str, str]:
    from importlib.metadata import version

    import torch

    import torch_ccl
    from torch_ccl.cli import fabric

    libfabric = fabric.look_up()
    return {
        "torch-ccl": version("torch_ccl"),
        "installed in": torch_ccl.cwd,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "libfabric": libfabric.get("version", "not found"),
        "kernel": platform.release(),
    }


def processor(kernels: str) -> dict:
    from torch_ccl.cli.machine import cpu_model, instruction_sets, limits, topology
    from torch_ccl.inheritance import cpus_of_this_process

    return {
        "model": cpu_model(),
        "instruction_set": kernels,
        "instruction_sets": instruction_sets(),
        **topology(cpus_of_this_process()),
        "cgroup": limits()._asdict(),
    }


def gather_facts() -> dict:
    """Raises SettingError."""
    from torch_ccl.cli import known_settings as known

    names = known.setting_names()
    library = known.library_info()
    return {
        "versions": versions(),
        "processor": processor(library["kernels"]),
        "settings": known.settings_in_force(library, os.environ),
        "unknown_settings": known.unknown_settings(os.environ, names),
        "algorithms": library["algorithms"],
    }


def readable_gib(count: int | None) -> str:
    return "no limit" if count is None else f"{count / (1 << 30):.1f} GiB"


def processor_rows(facts: dict) -> list[tuple[str, str]]:
    from torch_ccl.agent.cores import list_text

    nodes = ", ".join(f"{node}: {cpus}" for node, cpus in facts["numa_nodes"].items())
    cpus, cpuset = facts["cgroup"]["cpus"], facts["cgroup"]["cpuset"]
    return [
        ("processor", facts["model"]),
        (
            "instruction set",
            f"{facts['instruction_set']} (there are {', '.join(facts['instruction_sets'])})",
        ),
        ("sockets", str(facts["sockets"])),
        ("NUMA nodes", f"{len(facts['numa_nodes'])} ({nodes})" if nodes else "not known"),
        ("cores, threads", f"{facts['cores']}, {facts['threads']}"),
        (
            "this process",
            f"may use CPUs {facts['usable_cpus']}, {facts['usable_cores']} cores",
        ),
        ("cgroup, cpuset", "none" if cpuset is None else list_text(cpuset)),
        ("cgroup, time of CPUs", "no limit" if cpus is None else f"{cpus:g}"),
        ("cgroup, memory", readable_gib(facts["cgroup"]["memory_bytes"])),
    ]


def print_facts(facts: dict) -> None:
    print_table("versions", ("what", "version"), list(facts["versions"].items()))
    print_table("machine", ("what", "value"), processor_rows(facts["processor"]))
    settings = [(row["name"], row["value"], row["from"]) for row in facts["settings"]]
    print_table("settings", ("name", "value", "from"), settings)
    if unknown := facts["unknown_settings"]:
        print_table("no settings of this library", ("name", "nearest"), list(unknown.items()))
    typer.echo("torch-ccl info --algorithms shows which algorithm runs when")


def info(
    algorithms: Annotated[bool, typer.Option(help="the table of algorithms instead")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="all of it as JSON")] = False,
) -> None:
    """Show versions, machine and settings, or which algorithm runs when."""
    from torch_ccl.cli.known_settings import SettingError

    try:
        facts = gather_facts()
    except SettingError as problem:
        typer.echo(f"torch-ccl info: {problem}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    elif algorithms:
        print_algorithms(facts["algorithms"])
    else:
        print_facts(facts)
