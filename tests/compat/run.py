"""make compat DOCS=<directory>: runs the scripts and command lines of documents, unchanged.

The documents are no part of this repository: scripts are extracted from them at run time.
tests/support/documents.py lists the changes to them; this file lists the scripts, how each is
started and which check its output must pass.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1]))
import torch
from support import document_checks
from support.commands import ROOT, shell
from support.composed_scripts import SCALING_PIECES, SPAWN_PIECES
from support.documents import (
    BATCH,
    DDP_LINE,
    DDP_ON_CPU,
    DDP_ON_DEVICE,
    EXAMPLE_LINE,
    NO_PRELOAD,
    ONE_HOST,
    PIP_LINE,
    PROFILING_LINE,
    SCALING_ON_CPU,
    SCALING_ON_DEVICE,
    SPAWN,
    TRAINING,
    TWO_HOSTS,
    Source,
    all_changes,
    commands,
    compose,
    cut,
    variables,
)
from support.launchers import (
    BOUND_S,
    INTEL_MPI,
    LAUNCHERS,
    MPICH,
    OPEN_MPI,
    Launcher,
    RankOutput,
    by_python,
    clean_environment,
    fixed_port,
    free_port,
    run_script,
)
from support.mpi_hosts import run_over_hosts, write_launchers
from support.python_environments import INHERITED, make_environment
from support.slurm_cluster import cluster
from torch_ccl.agent.cores import cores_of

SCRIPTS_HERE = Path(__file__).parent / "scripts"

# ---- scripts, run with every launcher


class Script(NamedTuple):
    name: str
    source: Source
    check: Callable[[list[RankOutput], str], None]


DEMO = Source("000", ("DDP(", ".step()"))
EXAMPLE = Source("001", ("import",), "example.py")
PROFILING = Source("001", ("import",), "profiling.py")
DDP = Source("002", ("DDP(model",), "`Example_DDP.py`")
SCRIPTS = (
    Script("demo.py", DEMO, document_checks.print_nothing),
    Script("example.py", EXAMPLE, document_checks.print_rank),
    Script("profiling.py", PROFILING, document_checks.print_rank_and_profile),
    Script(TRAINING, Source("003", ("def sync_gradients",)), document_checks.print_same_weights),
    Script(DDP_ON_CPU, DDP, document_checks.print_iterations),
    Script(DDP_ON_DEVICE, DDP, document_checks.print_iterations),
)

GO_ALONE = (DDP_ON_CPU,)  # scripts that also run without a launcher
ALONE = {"no launcher": by_python}


def run_scripts(docs: Path, only: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    for script in SCRIPTS:
        if only not in script.name:
            continue
        text = cut(script.name, script.source, docs)
        for launcher, launch in {**LAUNCHERS, **(ALONE if script.name in GO_ALONE else {})}.items():
            yield script.name, launcher, partial(run_with, script, text, launch)


def run_with(script: Script, text: str, launch: Launcher) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / script.name.split()[0]
        path.write_text(text)
        with mock.patch.dict(os.environ, variables(script.name)):
            script.check(run_script(launch, path, port=fixed_port(text)), text)


# ---- command lines, run on virtual hosts in the directory of their files


class Line(NamedTuple):
    name: str
    source: Source
    hosts: int
    script: str  # its first word is the name in the command
    script_source: Source
    check: Callable[[document_checks.Ran], None]


ON_ONE_HOST = Source("000", ("-np 2", "ut_memory.py"))
ON_TWO_HOSTS = Source("000", ("-f hostfile", "ut_memory.py"))
LINES = (
    Line(ONE_HOST, ON_ONE_HOST, 1, "ut_memory.py", DEMO, document_checks.have_not_grown),
    Line(NO_PRELOAD, ON_ONE_HOST, 1, "ut_memory.py", DEMO, document_checks.have_not_grown),
    Line(TWO_HOSTS, ON_TWO_HOSTS, 2, "ut_memory.py", DEMO, document_checks.have_not_grown),
    Line(
        EXAMPLE_LINE,
        Source("001", ("mpirun", "example.py")),
        1,
        "example.py",
        EXAMPLE,
        document_checks.print_ranks,
    ),
    Line(
        PROFILING_LINE,
        Source("001", ("mpirun", "profiling.py")),
        1,
        "profiling.py",
        PROFILING,
        document_checks.print_profiles,
    ),
    Line(
        "mpiexec of ptdist.py",
        Source("003", ("-hosts", "ptdist.py")),
        2,
        "ptdist.py",
        Source("003", ("'ptdist.py'",)),
        document_checks.print_shown_lines,
    ),
    Line(
        DDP_LINE,
        Source("002", ("mpirun -n 2 -l",)),
        1,
        DDP_ON_DEVICE,
        DDP,
        document_checks.print_labelled_iterations,
    ),
)
MPIS = {"MPICH": MPICH, "Intel MPI": INTEL_MPI}


def run_lines(docs: Path, only: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    for line in LINES:
        if only not in line.name:
            continue
        block = cut(line.name, line.source, docs)
        text = cut(line.script, line.script_source, docs)
        for mpi in MPIS:
            yield line.name, mpi, partial(run_line, line, block, text, MPIS[mpi])


def run_line(line: Line, block: str, text: str, mpiexec: str) -> None:
    files = {line.script.split()[0]: text}
    exports = "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in variables(line.script).items()
    )
    hosts, out, err = run_over_hosts(line.hosts, exports + commands(block), files, mpiexec)
    line.check(document_checks.Ran(block, mpiexec, hosts, out, err))


# ---- command lines that install torch_ccl into an environment with torch


class Install(NamedTuple):
    name: str
    source: Source


SETVARS = Source("002", ("torch_ccl.cwd",))
INSTALLS = (
    Install("python setup.py install", Source("001", ("python setup.py install",))),
    Install(PIP_LINE, Source("002", ("pip install oneccl_bind_pt",))),
)


def run_installs(docs: Path, only: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    for install in INSTALLS:
        if only in install.name:
            block = cut(install.name, install.source, docs)
            setvars = cut("setvars.sh", SETVARS, docs).splitlines()[0]
            yield install.name, "a new venv", partial(run_install, commands(block), setvars)


def run_install(line: str, setvars: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        environment = make_environment(Path(directory) / "venv")
        dist = f"{directory}/dist"
        shell(f"make -C {ROOT} wheel DIST={dist}", env=INHERITED)
        environment.shell(line, cwd=ROOT, DIST=dist)
        printed = environment.shell(f"{setvars}\necho root: $CCL_ROOT")
        assert f"root: {environment.site_packages / 'torch_ccl'}" in printed.splitlines(), printed


# ---- a batch script that the document describes, on a Slurm cluster of two nodes


def run_batch(docs: Path, only: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    if only in BATCH:
        yield BATCH, "Slurm, Open MPI", partial(submit, docs)


def submit(docs: Path) -> None:
    """batch.sh contains the launch line of the document, which also shows how to submit it."""
    launch = cut("batch.sh", Source("004", ("MPI_FLAGS",)), docs)
    assert launch in (SCRIPTS_HERE / "batch.sh").read_text(), f"batch.sh lacks {launch!r}"
    line = cut("sbatch", Source("004", ("sbatch",)), docs).splitlines()[-1]
    with cluster(nodes=2) as slurm, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in ("batch.sh", "torch_test.py"):
            shutil.copy(SCRIPTS_HERE / file, directory)
        write_launchers(directory / "bin", OPEN_MPI)
        path = f"{directory}/bin:{slurm.environment()['PATH']}"
        finished = slurm.run("bash", "-euc", line, cwd=directory, PATH=path, **variables(BATCH))
        assert finished.code == 0, finished
        (out,) = directory.glob("*.out")
        document_checks.print_hosts(out.read_text().splitlines())


# ---- a program that starts its own ranks

URLS = ("env://", "tcp://127.0.0.1:{port}", "file://{directory}/store")


def run_spawning(docs: Path, only: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    if only in SPAWN:
        text = compose(SPAWN, "003", SPAWN_PIECES, docs)
        for url in URLS:
            yield SPAWN, url.partition("//")[0] + "//", partial(spawn, text, url)


def spawn(text: str, url: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path, checkpoint, port = (
            Path(directory) / "spawning.py",
            f"{directory}/model.pt",
            free_port(),
        )
        path.write_text(text)
        words = [sys.executable, path, url.format(port=port, directory=directory), checkpoint]
        environment = clean_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        out = subprocess.check_output(words, env=environment, text=True, timeout=BOUND_S)
        document_checks.have_seen_all_samples(out.splitlines(), torch.load(checkpoint))


# ---- training on all tiles of a card: two devices, or two shares of the cores


def run_scaling(docs: Path, only: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    rows = (
        (SCALING_ON_CPU, "two cores", ["cpu", "cpu"]),
        (SCALING_ON_DEVICE, "two devices", ["standin:0", "standin:1"]),
    )
    for name, title, devices in rows:
        if only in name:
            text = compose(name, "002", SCALING_PIECES, docs)
            yield name, title, partial(scale, text, variables(name), devices)


def scale(text: str, environment: dict[str, str], devices: list[str]) -> None:
    two_cores = [str(core.cpus[0]) for core in cores_of(os.sched_getaffinity(0))[:2]]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scaling.py"
        path.write_text(text)
        words = ["taskset", "-c", ",".join(two_cores), sys.executable, path]
        out = subprocess.check_output(
            words, env=clean_environment(**environment), text=True, timeout=BOUND_S
        )
        document_checks.have_used_all_tiles(out.splitlines(), devices)


# ---- all of them


def print_changes(name: str) -> None:
    """The changes to a command line and to the script that it starts."""
    for changed in (name, *(line.script for line in LINES if line.name == name)):
        for change in all_changes(changed):
            print(textwrap.indent(change, "    "))


def passes(run: Callable[[], None]) -> bool:
    try:
        run()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compat DOCS=<directory>")
    parser.add_argument("docs", type=Path, help="the directory that holds the documents")
    parser.add_argument("--only", default="", help="scripts whose name has this in it")
    given = parser.parse_args()
    results, last = [], ""
    try:
        for kind in (run_scripts, run_lines, run_spawning, run_scaling, run_installs, run_batch):
            for name, title, run in kind(given.docs, given.only):
                if name != last:
                    print(name)
                    print_changes(name)
                    last = name
                results.append(passes(run))
                print(f"    {title:<20}{'passed' if results[-1] else 'FAILED'}", flush=True)
    except AssertionError as error:
        parser.error(str(error))
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return not all(results) or not results


if __name__ == "__main__":
    sys.exit(main())
