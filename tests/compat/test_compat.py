"""Scripts with the same calls as the documents' scripts, started by the same launchers."""

import itertools
import json
import os
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support import document_checks, profile_table, standin_device
from support.document_checks import Ran, have_not_grown, have_settings, print_shown_lines
from support.documents import END, Addition, Edit, Move, Source, blocks, changed, commands, find
from support.launchers import (
    BOUND_S,
    HYDRA_LABEL,
    INTEL_MPI,
    LAUNCHERS,
    MPICH,
    SIZE,
    SLURM_LABEL,
    Launcher,
    RankOutput,
    by_labels,
    by_python,
    clean_environment,
    fixed_port,
    free_port,
    run_script,
    split_by_label,
)
from support.mpi_hosts import run_over_hosts

SCRIPTS = Path(__file__).parent / "scripts"


# ---- every script with every launcher


def prints_rank_and_size(ranks: list[RankOutput], directory: Path) -> None:
    for rank, out, err in ranks:
        ranks_line, gradient = out.splitlines()
        # Each of two torchrun agents counts as one host.
        assert ranks_line in {f"{rank} of 2, locally {local}" for local in (rank, 0)}
        assert gradient == str([[0.5] * 3] * 2)  # the mean of the inputs 0 and 1
        assert not err, err


def has_trained(ranks: list[RankOutput], directory: Path) -> None:
    """The result is that of one process with the data of all ranks."""
    expected_losses, expected_weights = trained_alone(len(ranks))
    printed = [rank.out.splitlines() for rank in ranks]
    assert len({weights for _, weights in printed}) == 1, printed
    for (losses, weights), expected in zip(printed, expected_losses, strict=True):
        assert json.loads(losses.removeprefix("losses ")) == pytest.approx(expected, rel=1e-4)
        found = torch.cat([torch.tensor(w) for w in json.loads(weights.removeprefix("weights "))])
        torch.testing.assert_close(found, expected_weights)


def trained_alone(size: int) -> tuple[list[list[float]], torch.Tensor]:
    """The losses of each rank of train.py, and the weights at the end."""
    nets, data = [], []
    with torch.random.fork_rng():
        for rank in range(size):
            torch.manual_seed(rank)
            nets.append(runpy.run_path(str(SCRIPTS / "train.py"))["Curve"]())
            data.append([torch.randn(16, 2) for _ in range(3)])
    net, losses = nets[0], [[] for _ in range(size)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in zip(*data, strict=True):
        optimizer.zero_grad()
        for own, x in zip(losses, step, strict=True):
            loss = torch.nn.functional.mse_loss(net(x), x.prod(1, keepdim=True))
            (loss / size).backward()
            own.append(loss.item())
        optimizer.step()
    return losses, torch.cat([p.detach().flatten() for p in net.parameters()])


def shows_profile(ranks: list[RankOutput], directory: Path) -> None:
    for _, out, err in ranks:
        assert profile_table.rows(out, "pg::") == [
            ("pg::allreduce", 3, "[[2]]"),
            ("pg::allreduce", 7, "[[3, 5]]"),
            ("pg::wait::allreduce::sz:15", 7, "[]"),
            ("pg::wait::allreduce::sz:2", 3, "[]"),
        ], out
        heads = {"Name", "CPU total %", "CPU total", "CPU time avg", "Input Shapes"}
        assert heads <= set(profile_table.columns(out)) and "Self CPU time total: " in out
        assert not profile_table.without_log(err), err


def has_exchanged(ranks: list[RankOutput], directory: Path) -> None:
    assert [rank.out for rank in ranks] == [f"rank {r} has [3.0, -4.5]\n" for r in range(2)]


def has_shared_gradients(ranks: list[RankOutput], directory: Path) -> None:
    outs = {rank.out for rank in ranks}
    assert len(outs) == 1, outs
    before, after = outs.pop().splitlines()
    assert before.startswith("before ") and after.startswith("after ")
    assert before.split()[1] != after.split()[1], "the weights did not change"


def has_seen_all_samples(lines: list[str], directory: Path) -> None:
    epochs, weights = defaultdict(list), set()
    for line in sorted(lines):
        words, _, values = line.partition(": ")
        if "epoch" in words:
            epochs[words.split()[-1]].append(json.loads(values))
        else:
            weights.add(values)
    assert set(epochs) == {"0", "1"} and len(weights) == 1, lines
    for shares in epochs.values():
        assert len(shares) == 2 and sorted(shares[0] + shares[1]) == list(range(24)), shares
    assert epochs["0"] != epochs["1"], "set_epoch did not shuffle anew"
    saved = torch.load(directory / "epoch1.pt")
    assert [p.flatten().tolist() for p in saved.values()] == json.loads(weights.pop())


def has_run_epochs(ranks: list[RankOutput], directory: Path) -> None:
    has_seen_all_samples([line for rank in ranks for line in rank.out.splitlines()], directory)


class Row(NamedTuple):
    script: str
    check: Callable[[list[RankOutput], Path], None]
    arguments: tuple[str, ...] = ()  # {port} is free, {directory} is empty
    environment: Callable[[], dict[str, str]] = dict


def with_devices() -> dict[str, str]:
    return {**standin_device.environment(), "CCL_DEVICES": "standin"}


ROWS = {
    "rank and size": Row("print_rank.py", prints_rank_and_size, ("{port}",)),
    "train": Row("train.py", has_trained),
    "train on devices": Row("train.py", has_trained, ("standin",), with_devices),
    "profile": Row("profile_sums.py", shows_profile),
    "send and recv": Row("exchange.py", has_exchanged),
    "gradients by hand": Row("gradients.py", has_shared_gradients),
    "epochs, env://": Row("epochs.py", has_run_epochs, ("{directory}",)),
    "epochs, tcp://": Row(
        "epochs.py", has_run_epochs, ("{directory}", "--dist-url", "tcp://127.0.0.1:{port}")
    ),
    "epochs, file://": Row(
        "epochs.py", has_run_epochs, ("{directory}", "--dist-url", "file://{directory}/store")
    ),
}
#: The other combinations run in `make test-all`.
QUICK = {
    ("torchrun", "train"),
    ("MPICH", "train on devices"),
}


#: Options of srun. Two tasks on one node, because some scripts use a loopback MASTER_ADDR.
STEPS = {
    "srun": (),
    "srun --mpi=pmi2": ("--mpi=pmi2",),
    "srun --mpi=pmix": ("--mpi=pmix",),
}


def by_srun(slurm, options: tuple[str, ...]) -> Launcher:
    step = ["srun", "--label", "-N", "1", "-n", str(SIZE), *options, sys.executable]
    return by_labels(slurm.login.inside(step), SLURM_LABEL, **slurm.environment())


def pairs():
    for launcher, row in itertools.product((*LAUNCHERS, *STEPS), ROWS):
        marks = [] if (launcher, row) in QUICK else [pytest.mark.slow]
        yield pytest.param(launcher, row, marks=marks)


@pytest.mark.parametrize(("launcher", "script"), list(pairs()))
def test_script(launcher, script, tmp_path, launch_table, request, monkeypatch):
    launch_table(launcher, script)
    for name, value in ROWS[script].environment().items():
        monkeypatch.setenv(name, value)
    if launcher in LAUNCHERS:
        launch = LAUNCHERS[launcher]
    else:
        launch = by_srun(request.getfixturevalue("slurm"), STEPS[launcher])
    row, port = ROWS[script], free_port()
    arguments = [word.format(port=port, directory=tmp_path) for word in row.arguments]
    ranks = run_script(launch, SCRIPTS / row.script, *arguments, port=port)
    row.check(ranks, tmp_path)


def test_script_without_a_launcher(tmp_path):
    """The script sets itself to rank 0 of 1."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    script = tmp_path / "alone.py"
    lines = [f"os.environ[{name!r}] = {value!r}" for name, value in place.items()]
    lines += [f"os.environ['MASTER_PORT'] = '{free_port()}'"]
    script.write_text("\n".join(["import os", *lines, (SCRIPTS / "train.py").read_text()]))
    has_trained(run_script(by_python, script), tmp_path)


@pytest.mark.slow
def test_spawn(tmp_path, launch_table):
    launch_table("mp.spawn", "epochs, tcp://")
    url = ["--dist-url", f"tcp://127.0.0.1:{free_port()}"]
    words = [sys.executable, SCRIPTS / "epochs.py", tmp_path, *url, "--spawn", "2"]
    out = subprocess.check_output(words, env=clean_environment(), text=True, timeout=BOUND_S)
    has_seen_all_samples(out.splitlines(), tmp_path)


# ---- command lines with host names

#: Each rank on the other core than Intel MPI's default.
HYDRA = r"""
source ~/.local/env/setvars.sh
{preload}
export CCL_WORKER_COUNT=1 CCL_WORKER_AFFINITY=1,0
mpiexec.hydra {places} -l -genv I_MPI_PIN_DOMAIN=[0x2,0x1] \
              -genv KMP_BLOCKTIME=1 -genv KMP_AFFINITY=granularity=fine,compact,1,0 \
              -genv OMP_NUM_THREADS=2 python -u train_in_lines.py
"""
PRELOAD = 'export LD_PRELOAD="${CONDA_PREFIX}/lib/libiomp5.so"'
#: One write per line: with `python -u`, -l puts a label before each write.
IN_LINES = (
    "import sys\nprint = lambda *words: sys.stdout.write(' '.join(map(str, words)) + '\\n')\n"
)
SURROUNDINGS = "\nimport print_environment\nprint_environment.show()\n"

with_and_without_preload = pytest.mark.parametrize(
    "preload", [PRELOAD, ""], ids=["libiomp5", "torch's OpenMP"]
)
by_two_mpis = pytest.mark.parametrize("mpiexec", [MPICH, INTEL_MPI], ids=["MPICH", "Intel MPI"])


def train_by_hydra(count: int, places: str, preload: str, mpiexec: str) -> None:
    """All ranks have the settings of the command line, and trained together."""
    block = HYDRA.format(places=places, preload=preload)
    files = {"train_in_lines.py": IN_LINES + (SCRIPTS / "train.py").read_text() + SURROUNDINGS}
    hosts, out, err = run_over_hosts(count, block, files, mpiexec)
    found = [line for line in out if "{" in line]
    have_settings(Ran(block, mpiexec, hosts, found, err))
    printed = split_by_label("\n".join(line for line in out if line not in found), HYDRA_LABEL)
    has_trained([RankOutput(r, printed[str(r)], "") for r in range(len(found))], Path())


@pytest.mark.slow
@with_and_without_preload
@by_two_mpis
def test_hydra_on_one_host(mpiexec, preload):
    train_by_hydra(1, "-np 2 -ppn 2", preload, mpiexec)


@pytest.mark.slow
@with_and_without_preload
@by_two_mpis
def test_hydra_with_a_file_of_addresses(mpiexec, preload):
    train_by_hydra(2, "-f hostfile -np 4 -ppn 2", preload, mpiexec)


@pytest.mark.slow
@by_two_mpis
def test_hydra_with_names_of_hosts(mpiexec):
    files = {"exchange.py": (SCRIPTS / "exchange.py").read_text() + SURROUNDINGS}
    line = "mpiexec -n 2 -ppn 1 -hosts left,right python exchange.py"
    _, out, _ = run_over_hosts(2, line, files, mpiexec)
    received = [line for line in out if "{" not in line]
    assert sorted(received) == [f"rank {rank} has [3.0, -4.5]" for rank in range(2)]
    found = [json.loads(line) for line in out if line not in received]
    assert sorted((r["rank"], r["host"]) for r in found) == [(0, "left"), (1, "right")]


def test_launch_on_unknown_host():
    with pytest.raises(AssertionError, match="there is no host third"):
        run_over_hosts(2, "timeout 3 mpiexec -n 2 -host h1,third true", {})


# ---- extraction of scripts from documents

DOCUMENT = """
# Some document

first.py
```python

print("first",
      ...)
...
```

Then there is this one:
```bash
    first.py
```
```python
    import os
    if os.environ:
        print("second")
        
    os.environ['MASTER_PORT'] = '1234'
```   
"""  # noqa: W291, W293


def test_extraction():
    found = blocks(DOCUMENT)
    assert [block.kind for block in found] == ["python", "bash", "python"]
    assert find(Source("", title="first.py"), found) is found[0]
    second = find(Source("", ("os.environ",)), found)
    assert second is found[2] and second.text.splitlines()[:2] == ["import os", "if os.environ:"]
    assert fixed_port(second.text) == 1234 and fixed_port(found[0].text) is None
    with pytest.raises(AssertionError, match="2 blocks"):
        find(Source("", ("print",)), found)


def test_changes():
    text = blocks(DOCUMENT)[0].text
    changes = (
        Edit("first", ",\n      ...", "", "nothing more to print"),
        Edit("first.py", "...", "pass", "nothing to do"),
        Move("first.py", "pass", "print(", "it comes first"),
        Addition("first.py", "print(", "# ours\n", "a remark"),
        Addition("first.py", END, "# done\n", "another"),
        Edit("second.py", "...", "raise", "of another script"),
    )
    expected = '\npass\n\n\n# ours\nprint("first")\n# done\n'
    assert changed("first.py", text, changes) == expected
    with pytest.raises(AssertionError, match="has no"):
        changed("second.py", "import os\n", changes)
    with pytest.raises(AssertionError, match="there is no 'nowhere'"):
        changed("first.py", text, (Addition("first.py", "nowhere", "# ours\n", "a remark"),))


LINES = """
```
someone@left:~$ mpiexec -n 2 -ppn 1 -hosts left,right python a.py
one
two
```
```bash
    export X=1
    mpiexec -f hostfile \\
        -np 4 -ppn 2 python b.py
```
"""


def test_commands():
    found = blocks(LINES)
    shown = find(Source("", ("-hosts", "a.py")), found).text
    assert commands(shown) == "mpiexec -n 2 -ppn 1 -hosts left,right python a.py\n"
    ran = Ran(shown, MPICH, ["left", "right"], ["two", "one"], "")
    print_shown_lines(ran)
    with pytest.raises(AssertionError):
        print_shown_lines(ran._replace(lines=["one"]))
    block = find(Source("", ("-np",)), found).text
    assert commands(block) == block and block.startswith("export X=1\nmpiexec")


PLACE = {"size": 2, "host": "h1", "threads": 2, "grown_kib": 9}
INTELS_OPENMP = {"libiomp5": True, "blocktime_ms": 1}
TORCHS_OPENMP = {"libiomp5": False, "blocktime_ms": None}


@pytest.mark.parametrize(
    ("preload", "mpiexec", "openmp", "cpus"),
    [
        (PRELOAD, MPICH, INTELS_OPENMP, ([0], [0])),
        (PRELOAD, INTEL_MPI, INTELS_OPENMP, ([1], [0])),
        ("", MPICH, TORCHS_OPENMP, ([0, 1], [0, 1])),
        ("", INTEL_MPI, TORCHS_OPENMP, ([1], [0])),
    ],
)
def test_settings(preload, mpiexec, openmp, cpus, monkeypatch):
    """Checks outputs of two ranks on two cores that must pass, and outputs that must not."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(document_checks, "cores_of", list)
    first, second = ({"rank": r, "cpus": cpus[r]} | PLACE | openmp for r in range(2))

    def ran(*ranks: dict, err: str = "") -> Ran:
        lines = [f"[{label}] {json.dumps(rank)}" for label, rank in enumerate(ranks)]
        block = HYDRA.format(preload=preload, places="-np 2 -ppn 2")
        return Ran(block, mpiexec, ["h1"], lines[::-1], err)

    have_not_grown(ran(first, second, err="[0] [c10d] no name\n"))
    for wrong in (
        {"rank": 0},
        {"size": 3},
        {"host": "h2"},
        {"libiomp5": not openmp["libiomp5"]},
        {"blocktime_ms": 200},
        {"threads": 1},
        {"cpus": [2]},
        {"grown_kib": 2000},
    ):
        with pytest.raises(AssertionError):
            have_not_grown(ran(first, second | wrong))
    for less in (ran(first), ran(first, second, err="ERROR: ld.so: cannot be preloaded\n")):
        with pytest.raises(AssertionError):
            have_not_grown(less)
