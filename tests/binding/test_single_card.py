"""torch_ccl.single_card: environment and affinity of ranks, failures, signals, training."""

import atexit
import contextlib
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.launchers import LAUNCHERS, clean_environment
from support.launchers import run_script as run_by
from support.parameters import slow
from support.ranks import run_script
from torch.utils.data import DataLoader, TensorDataset
from torch_ccl.environment import init
from torch_ccl.exit_status import TERMINATE_GRACE_S
from torch_ccl.single_card import single_card_dist
from torch_ccl.tiles import cpu_tiles, device_tiles

spawn = single_card_dist.multi_process_spawn
SIZE = 2
BOUND_S = 60


def own_rank() -> int:
    return int(os.environ["RANK"])


def write_report(directory: str, **values) -> None:
    """Writes the report of this rank for the test. Renamed, so that the file is never partial."""
    path = Path(directory) / f"{own_rank()}.json"
    path.with_suffix(".new").write_text(json.dumps(values))
    path.with_suffix(".new").rename(path)


def read_reports(directory: Path, size: int = SIZE) -> list[dict]:
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(size)]


def wait_for_files(directory: Path, suffix: str = "json") -> None:
    end = time.monotonic() + BOUND_S
    while not all((directory / f"{rank}.{suffix}").exists() for rank in range(SIZE)):
        assert time.monotonic() < end, f"not all ranks have written their .{suffix} file"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether the process has exited; it may still be a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


# ---- environment and affinity of ranks

OTHER_LAUNCHERS = {
    "PMI_RANK": "7",
    "OMPI_COMM_WORLD_RANK": "7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def report_environment(directory):
    write_report(
        directory,
        environment={name: os.environ.get(name) for name in (*OWN_VARIABLES, *OTHER_LAUNCHERS)},
        cpus=sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        daemon=multiprocessing.current_process().daemon,
    )


OWN_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "OMP_NUM_THREADS",
)


def test_variables_and_cpus(tmp_path, monkeypatch):
    for name, value in OTHER_LAUNCHERS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = dict(os.environ), os.sched_getaffinity(0)
    assert spawn(report_environment, (str(tmp_path),), tiles=SIZE) == 0
    assert (dict(os.environ), os.sched_getaffinity(0)) == before

    printed = read_reports(tmp_path)
    shares = [set(row["cpus"]) for row in printed]
    assert not shares[0] & shares[1] and shares[0] | shares[1] <= before[1]
    sizes = [tile.threads for tile in cpu_tiles(before[1], SIZE)]
    assert [row["threads"] for row in printed] == sizes
    for rank, row in enumerate(printed):
        own = [str(rank), "2", str(rank), "2", "127.0.0.1", str(sizes[rank])]
        # torch_ccl, which f's module imports, adds the variables that hydra would set.
        others = [str(rank), None, None]
        assert list(row["environment"].values()) == [*own, *others]
        assert not row["daemon"]  # so that it may start workers


@pytest.mark.slow
def test_user_sets_thread_count(tmp_path, monkeypatch):
    """OMP_NUM_THREADS of the user is kept, although the rank has all CPUs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert spawn(report_environment, (str(tmp_path),), tiles=1) == 0
    assert read_reports(tmp_path, 1)[0]["threads"] == 1


def test_arguments_are_refused():
    with pytest.raises(TypeError, match=r"such as \(args,\), not str"):
        spawn(report_environment, "directory")
    with pytest.raises(ValueError, match="tiles=0"):
        spawn(report_environment, ("",), tiles=0)
    with pytest.raises(ValueError, match="tiles=100000, but"):
        spawn(report_environment, ("",), tiles=100000)


# ---- exit codes, failures and signals

ENDS = {
    "exit": (3, lambda: sys.exit(3)),
    "exit at once": (5, lambda: os._exit(5)),
    "killed": (137, lambda: os.kill(os.getpid(), signal.SIGKILL)),
}


def wait_for_other_rank(directory: str) -> None:
    end = time.monotonic() + BOUND_S
    while not (Path(directory) / f"{1 - own_rank()}.json").exists() and time.monotonic() < end:
        time.sleep(0.01)


def end_or_sleep(directory, way):
    signal.signal(signal.SIGTERM, signal.SIG_IGN if way == "killed" else signal.SIG_DFL)
    write_report(directory, pid=os.getpid())
    wait_for_other_rank(directory)
    if own_rank() == 1:
        ENDS[way][1]()
    time.sleep(300)


@pytest.mark.parametrize("way", [w if w == "exit" else slow(w) for w in ENDS])
def test_failure_ends_other_ranks(tmp_path, way):
    """The other rank is ended even if it ignores SIGTERM."""
    assert spawn(end_or_sleep, (str(tmp_path), way), tiles=SIZE) == ENDS[way][0]
    assert all(is_gone(row["pid"]) for row in read_reports(tmp_path))


def raise_error(text):
    if own_rank() == 1:
        raise ValueError(text)
    time.sleep(300)


@pytest.mark.slow
def test_traceback_is_shown(capfd):
    assert spawn(raise_error, ("the reason",), tiles=SIZE) == 1
    printed = capfd.readouterr().err
    assert "in raise_error" in printed and "ValueError: the reason" in printed, printed


def leave_the_other_waiting(directory):
    if own_rank() == 1:
        atexit.register(time.sleep, 30)  # after the group has ended
    tile = single_card_dist(torch.nn.Linear(2, 2), range(8))
    write_report(directory, pid=os.getpid())
    if tile.rank == 1:
        sys.exit(3)
    dist.all_reduce(torch.ones(1))


@pytest.mark.slow
def test_exit_code_of_first_failure(tmp_path):
    """Rank 0 fails as soon as rank 1 leaves the group, and exits before rank 1."""
    assert spawn(leave_the_other_waiting, (str(tmp_path),), tiles=SIZE) == 3
    assert all(is_gone(row["pid"]) for row in read_reports(tmp_path))


def end_in_all_reduce(way):
    init()
    if own_rank() == 1:
        time.sleep(0.5)  # rank 0 waits in all_reduce by then
        ENDS[way][1]()
    dist.all_reduce(torch.ones(1))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["exit at once", "killed"])
def test_exit_code_of_root_cause(way):
    """Rank 0 reports its failure, caused by rank 1, before the exit of rank 1 is seen."""
    assert spawn(end_in_all_reduce, (way,), tiles=SIZE) == ENDS[way][0]


def abort_for_the_other():
    init()
    if own_rank() == 0:
        raise ValueError("the reason")
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        os.abort()


def test_abort_caused_by_another_rank():
    assert spawn(abort_for_the_other, tiles=SIZE) == 1


SLEEPING = """
import json, os, signal, sys, time
from pathlib import Path
from torch_ccl.single_card import single_card_dist

def write_marker(directory, name):
    path = Path(directory) / f"{os.environ['RANK']}.{name}"
    path.with_suffix(".new").write_text(json.dumps({"pid": os.getpid()}))
    path.with_suffix(".new").rename(path)

def sleep(directory, ends_on_sigterm):
    if not ends_on_sigterm:
        signal.signal(signal.SIGTERM, lambda *_: write_marker(directory, "terminated"))
    write_marker(directory, "json")
    time.sleep(300)

if __name__ == "__main__":
    single_card_dist.multi_process_spawn(sleep, (sys.argv[1], sys.argv[2] == "ends"), tiles=2)
"""


@contextlib.contextmanager
def sleeping(directory: Path, on_sigterm: str) -> Iterator[subprocess.Popen]:
    """Starts a script with two sleeping ranks, which end on SIGTERM ("ends") or not ("ignores")."""
    script = directory / "sleeping.py"
    script.write_text(SLEEPING)
    parent = subprocess.Popen(
        [sys.executable, script, directory, on_sigterm],
        env=clean_environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_files(directory)
        yield parent
    finally:
        parent.kill()
        parent.wait()
        for path in directory.glob("*.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_their_parent(tmp_path, number):
    with sleeping(tmp_path, "ends") as parent:
        parent.send_signal(number)
        parent.wait(BOUND_S)
        end = time.monotonic() + BOUND_S
        while not all(is_gone(row["pid"]) for row in read_reports(tmp_path)):
            assert time.monotonic() < end, "ranks have outlived their parent"
            time.sleep(0.01)


@pytest.mark.slow
def test_second_interrupt_kills(tmp_path):
    """A second Ctrl-C kills ranks that ignore SIGTERM."""
    with sleeping(tmp_path, "ignores") as parent:
        parent.send_signal(signal.SIGINT)
        wait_for_files(tmp_path, suffix="terminated")
        parent.send_signal(signal.SIGINT)
        parent.wait(TERMINATE_GRACE_S - 1)
        assert all(is_gone(row["pid"]) for row in read_reports(tmp_path))


def interrupt(pid: int) -> int:
    signal.raise_signal(signal.SIGINT)
    return pidfd_open(pid)


def fail(_pid: int) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


pidfd_open = os.pidfd_open


@pytest.mark.parametrize(("opens", "error"), [(interrupt, KeyboardInterrupt), (fail, OSError)])
def test_failed_start_leaves_no_process(monkeypatch, opens, error):
    monkeypatch.setattr(os, "pidfd_open", opens)
    with pytest.raises(error):
        spawn(time.sleep, (300,), tiles=SIZE)
    left = multiprocessing.active_children()
    for process in left:
        process.kill()
    assert not left


# ---- training

STEPS = 3


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(8, 4, generator=generator)
    return TensorDataset(torch.arange(8), x, x.sum(1, keepdim=True))


def train(directory):
    """An epoch is one step: every rank has half of the samples."""
    torch.manual_seed(own_rank())  # DDP broadcasts the first rank's weights
    dataset = samples()
    tile = single_card_dist(torch.nn.Linear(4, 1), dataset)
    begin = tile.model.module.weight.detach().clone()
    loader = DataLoader(
        dataset, batch_size=4, sampler=tile.train_sampler, num_workers=1, persistent_workers=True
    )
    optimizer = torch.optim.SGD(tile.model.parameters(), lr=0.1)
    seen = []
    for epoch in range(STEPS):
        tile.train_sampler.set_epoch(epoch)
        for index, x, y in loader:
            seen.append(index.tolist())
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(tile.model(x), y).backward()
            optimizer.step()
    parameters = {name: value.tolist() for name, value in tile.model.module.state_dict().items()}
    backend = dist.get_backend()
    write_report(
        directory,
        rank=tile.rank,
        backend=backend,
        seen=seen,
        begin=begin.tolist(),
        parameters=parameters,
    )


def train_alone(begin: dict) -> torch.Tensor:
    """One process trains on all samples."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    assert model.weight.tolist() == begin
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, x, y = samples().tensors
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model.weight.detach()


def test_training(tmp_path):
    """Floats are compared exactly: `tolist` loses nothing."""
    assert spawn(train, (str(tmp_path),), tiles=SIZE) == 0
    first, second = read_reports(tmp_path)
    assert [first["rank"], second["rank"]] == [0, 1]
    assert {first["backend"], second["backend"]} == {"ccl"}
    assert first["parameters"] == second["parameters"]
    assert first["begin"] == second["begin"] != first["parameters"]["weight"]
    torch.testing.assert_close(
        torch.tensor(first["parameters"]["weight"]), train_alone(first["begin"])
    )
    for mine, others in zip(first["seen"], second["seen"], strict=True):
        assert sorted([*mine, *others]) == list(range(8))
    assert first["seen"][0] != first["seen"][1]  # each epoch has another order


def sum_up(directory, number):
    single_card_dist(torch.nn.Linear(1, 1), range(2))
    x = torch.full((1,), float(number))
    dist.all_reduce(x)
    write_report(directory, sum=x.item(), port=os.environ["MASTER_PORT"])


@pytest.mark.slow
def test_two_jobs_at_once(tmp_path):
    def run(job: int) -> list[dict]:
        directory = tmp_path / str(job)
        directory.mkdir()
        assert spawn(sum_up, (str(directory), job), tiles=SIZE) == 0
        return read_reports(directory)

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(run, (1, 2))
    assert [row["sum"] for row in (*one, *two)] == [2.0, 2.0, 4.0, 4.0]
    assert {row["port"] for row in one}.isdisjoint(row["port"] for row in two)


UNDER_OTHER_LAUNCHER = """
import sys
import torch
import torch.distributed as dist
from torch_ccl.single_card import single_card_dist

tile = single_card_dist(torch.nn.Linear(2, 2), range(8))
tile.train_sampler.set_epoch(1)
tile.model(torch.ones(1, 2)).sum().backward()
sys.stdout.write(f"{tile.rank} of {dist.get_world_size()}: {len(tile.train_sampler)} samples\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "MPICH"])
def test_other_launchers(launcher, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNDER_OTHER_LAUNCHER)
    printed = [rank.out for rank in run_by(LAUNCHERS[launcher], script)]
    assert printed == [f"{rank} of 2: 4 samples\n" for rank in range(SIZE)]


def test_without_a_launcher():
    assert run_script(UNDER_OTHER_LAUNCHER) == "0 of 1: 8 samples\n"


# ---- tiles of other machines


def machine(root: Path, sockets: list[int], nodes: list[str]) -> Path:
    """The socket of each CPU, and the CPUs of each node."""
    for cpu, socket in enumerate(sockets):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{socket}\n")
    for number, cpus in enumerate(nodes):
        node = root / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
    return root


@pytest.mark.parametrize(
    ("sockets", "nodes", "usable", "count", "tiles"),
    [
        ([0] * 4, ["0-1", "2-3"], range(4), None, [[0, 1], [2, 3]]),  # nodes
        ([0] * 4, ["0-1", "2-3"], range(4), 1, [[0, 1, 2, 3]]),
        ([0] * 4, ["0-1", "2-3"], range(2), None, [[0], [1]]),  # one of which cannot be used
        ([0] * 10, ["0-7", "8-9"], range(10), None, [[*range(8)], [8, 9]]),  # uneven ones
        ([0] * 8, ["0-5", "6", "7"], range(8), None, [[*range(6)], [6], [7]]),
        ([0, 1, 0, 1], ["0-3"], range(4), None, [[0, 2], [1, 3]]),  # sockets
        ([0] * 5 + [1], ["0-5"], range(6), None, [[0, 1, 2, 3, 4], [5]]),
        ([0, 1, 0, 1], [], range(4), None, [[0, 2], [1, 3]]),
        ([0] * 6, ["0-5"], range(1, 6), None, [[1, 2, 3], [4, 5]]),  # neither
        ([0] * 6, ["0-5"], range(6), 3, [[0, 1], [2, 3], [4, 5]]),
        ([0], ["0"], [0], None, [[0]]),
    ],
)
def test_cpu_tiles(tmp_path, sockets, nodes, usable, count, tiles):
    found = cpu_tiles(usable, count, machine(tmp_path, sockets, nodes))
    assert [tile.cpus for tile in found] == tiles
    assert [tile.threads for tile in found] == [len(cpus) for cpus in tiles]


def test_device_tiles():
    assert [tile.threads for tile in device_tiles(2, 8)] == [4, 4]
    assert [tile.cpus for tile in device_tiles(4, 2, 3)] == [[]] * 3
    with pytest.raises(ValueError, match="tiles=3, but there are 2 devices"):
        device_tiles(2, 8, 3)
