"""Data-parallel training over the tiles of one machine, for scripts that train on one of them.

    def train(arguments):
        tile = single_card_dist(model, train_dataset)
        ...  # with tile.rank, tile.model and tile.train_sampler

    if __name__ == "__main__":
        sys.exit(single_card_dist.multi_process_spawn(train, (arguments,)))

A tile is a device of the accelerator. Without an accelerator it is a part of the CPUs that this
process may use: a NUMA node, a socket, or half of the cores where there is only one of these.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from torch_ccl.agent.cores import ROOT, Core, Share, cores, shares
from torch_ccl.agent.ports import open_port
from torch_ccl.agent.rank_process import end_with
from torch_ccl.endings import GRACE_S, PATIENCE_S, End, Process, Tail, first_to_fail
from torch_ccl.inheritance import UNSET, cpus_of_this_process
from torch_ccl.job import init
from torch_ccl.launchers import LOOPBACK

TOLD_BYTES = 3072  # of a traceback; below PIPE_BUF, so that what ranks tell does not mix


class single_card_dist:
    """One rank's part of the training: its place, the model on its tile, its share of the data.

    The default group is made if there is none. Who has started the ranks does not matter:
    multi_process_spawn(), another launcher, or nobody, which is a group of one.

    rank            its number on this host, which is also that of its device
    model           wrapped in DistributedDataParallel
    train_sampler   a DistributedSampler; call its set_epoch() before each epoch
    """

    def __init__(self, model: torch.nn.Module, train_dataset: Dataset):
        self.rank = init().local_rank
        self.model = _distributed(model, self.rank)
        self.train_sampler = DistributedSampler(train_dataset)

    @staticmethod
    def multi_process_spawn(f: Callable, args: Iterable = (), *, tiles: int | None = None) -> int:
        """Call f(*args) in one new process for each tile, and return when all have ended.

        There RANK, WORLD_SIZE and what else a launcher sets is set. Returns 0 if all is well, else
        the exit code of the first that failed (1 for an exception, 128 + its number for a signal);
        the others are ended then. The first is the one that the others failed for. `f` and `args`
        must be such as pickle takes. By default `tiles` is as many as the machine has.
        """
        if not isinstance(args, tuple | list):
            raise TypeError(f"args must be a tuple such as (args,), not {type(args).__name__}")
        with open_port(listening=False) as port, _Ranks(f, tuple(args)) as ranks:
            ranks.start(_tiles(tiles), port.getsockname()[1])
            return ranks.see_through()


def _distributed(model: torch.nn.Module, local_rank: int) -> DistributedDataParallel:
    if not torch.accelerator.is_available():
        return DistributedDataParallel(model)
    kind = torch.accelerator.current_accelerator().type
    if kind not in {device.type for device in dist.group.WORLD._device_types}:
        raise RuntimeError(
            f"no backend of the default group serves {kind}: CCL_DEVICES={kind}, set before "
            "`import torch`, has ccl serve it"
        )
    # A launcher may have shown each rank nothing but a device of its own.
    index = local_rank % torch.accelerator.device_count()
    torch.accelerator.set_device_index(index)
    device = torch.device(kind, index)
    return DistributedDataParallel(model.to(device), device_ids=[index])


# ---- tiles


def _tiles(count: int | None) -> list[Share]:
    if count is not None and count < 1:
        raise ValueError(f"tiles={count}: there must be at least one")
    cpus = cpus_of_this_process()
    if torch.accelerator.is_available():
        return device_tiles(torch.accelerator.device_count(), len(cores(cpus)), count)
    return cpu_tiles(cpus, count)


def device_tiles(devices: int, available_cores: int, count: int | None = None) -> list[Share]:
    """Not pinned: it is not known which cores are near to a device."""
    count = count or devices
    if count > devices:
        raise ValueError(f"tiles={count}, but there are {devices} devices")
    return [Share([], max(1, available_cores // count))] * count


def cpu_tiles(cpus: Iterable[int], count: int | None = None, root: Path = ROOT) -> list[Share]:
    """Disjoint. As many as there are NUMA nodes or, if all CPUs are of one node, sockets; where
    there is one socket too, two, if there are two cores."""
    available = _with_sockets(cores(cpus, root), root)
    if count is None:
        nodes = [list(node) for _, node in groupby(available, key=lambda core: core.node)]
        if len(nodes) > 1:  # however their sizes differ
            return [part for node in nodes for part in shares(node, 1)]
        count = min(2, len(available))
    parts = shares(available, count)
    if not parts:
        threads = sum(len(core.cpus) for core in available)
        raise ValueError(f"tiles={count}, but this process may use {threads} CPUs only")
    return parts


def _with_sockets(available: list[Core], root: Path) -> list[Core]:
    """Where there is one node, sockets stand for nodes."""
    if len({core.node for core in available}) > 1:
        return available
    return sorted(core._replace(node=_socket(core.cpus[0], root)) for core in available)


def _socket(cpu: int, root: Path) -> int:
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


# ---- in the new processes


def _call(rank: int, f: Callable, args: tuple, parent: int, parent_hears: Connection) -> None:
    """The failure is told at once: on its way out a process may wait, and others fail meanwhile."""
    os.setsid()  # one signal then reaches this rank and all that it has started
    end_with(parent)
    try:
        f(*args)
    except BaseException as problem:
        if code := _exit_code(problem):
            words = "".join(traceback.format_exception(problem)).encode(errors="replace")
            parent_hears.send((rank, code, words[-TOLD_BYTES:]))
        raise


def _exit_code(problem: BaseException) -> int:
    """As Python ends with it."""
    if not isinstance(problem, SystemExit):
        return 1
    if problem.code is None:
        return 0
    return problem.code & 0xFF if isinstance(problem.code, int) else 1


# ---- in the process that starts them

_starting = threading.Lock()


@contextlib.contextmanager
def _inheriting(variables: dict[str, str], cpus: list[int]) -> Iterator[None]:
    """A process that is started in this block has these from its first moment. That is needed:
    torch looks at both when it is loaded, and a script loads it before `f` is found in it."""
    names = (*UNSET, *variables)
    with _starting:
        before = {name: os.environ.get(name) for name in names}
        cpus_before = os.sched_getaffinity(0)  # of this thread; the others are not disturbed
        try:
            _change_environment({name: variables.get(name) for name in names})
            if cpus:
                os.sched_setaffinity(0, cpus)
            yield
        finally:
            os.sched_setaffinity(0, cpus_before)
            _change_environment(before)


def _change_environment(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C has its effect when the block is left."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # here it has no effect
        return
    came: list[tuple] = []
    signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


class _Ranks:
    """The processes, which have ended when the block is left."""

    def __init__(self, f: Callable, args: tuple):
        self._context = multiprocessing.get_context("spawn")
        self._told, self._hears = self._context.Pipe(duplex=False)
        self._arguments = (f, args, os.getpid(), self._hears)
        # By pidfd: those that a process forks inherit its sentinel, which so outlives it.
        self._running: dict[int, multiprocessing.Process] = {}
        self._host = socket.gethostname()  # as in the library's messages
        self._ranks: dict[Process, int] = {}
        self._tails: dict[int, Tail] = {}
        self._failed: dict[int, End] = {}

    def __enter__(self) -> "_Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        """Also if the user has interrupted us; who does it again does not want to wait."""
        try:
            self._end(signal.SIGTERM)
        finally:
            with _uninterrupted():
                self._end(signal.SIGKILL)
                self._told.close()
                self._hears.close()

    def start(self, tiles: list[Share], port: int) -> None:
        for rank, tile in enumerate(tiles):
            variables = {
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(tile.size)),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(tiles)),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(len(tiles)),
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
            }
            process = self._context.Process(
                target=_call, args=(rank, *self._arguments), name=f"rank {rank}", daemon=False
            )
            with _uninterrupted(), _inheriting(variables, tile.cpus):
                process.start()
                self._note_start(rank, process)

    def _note_start(self, rank: int, process: multiprocessing.Process) -> None:
        try:
            self._running[os.pidfd_open(process.pid)] = process
        except OSError:  # nobody would end it
            process.kill()
            process.join()
            raise
        self._ranks[Process(self._host, process.pid)] = rank
        self._tails[rank] = Tail()

    def see_through(self) -> int:
        """Until all have ended, or PATIENCE_S after one has failed."""
        stop_at = math.inf
        while self._running and time.monotonic() < stop_at:
            self._step(stop_at)
            if self._failed and stop_at == math.inf:
                stop_at = time.monotonic() + PATIENCE_S
        first = first_to_fail(self._failed.values(), self._tails, self._ranks)
        return first.exit_code if first else 0

    def _step(self, until: float) -> None:
        left_s = None if until == math.inf else max(0.0, until - time.monotonic())
        ended = [fd for fd in wait([*self._running, self._told], left_s) if fd in self._running]
        while self._told.poll():
            rank, code, words = self._told.recv()
            self._tails[rank].add(words)
            self._note_failure(rank, code)
        for pidfd in ended:
            process = self._reaped(pidfd)
            if process.exitcode:
                rank = self._ranks[Process(self._host, process.pid)]
                self._note_failure(rank, process.exitcode)

    def _note_failure(self, rank: int, code: int) -> None:
        """Of a rank that has told it, its end comes second."""
        self._failed.setdefault(rank, End(rank, code, self._host, time.monotonic()))

    def _reaped(self, pidfd: int) -> multiprocessing.Process:
        process = self._running.pop(pidfd)
        os.close(pidfd)
        process.join()
        return process

    def _end(self, number: int) -> None:
        self._signal(number)
        end = time.monotonic() + GRACE_S
        while self._running and (left_s := end - time.monotonic()) > 0:
            for pidfd in wait(list(self._running), left_s):
                self._reaped(pidfd)

    def _signal(self, number: int) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                leads = os.getpgid(process.pid) == process.pid  # not before it has called setsid()
                (os.killpg if leads else os.kill)(process.pid, number)
