"""The timing loop of `torch-ccl bench`, one for all backends, and the ranks that it runs on."""

import faulthandler
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

WARM_UP = 3
BOUND_S = 600  # for one case on one backend


@dataclass(frozen=True)
class Case:
    op: str
    bytes: int
    dtype: str
    ranks: int

    def iterations(self) -> int:
        if self.bytes <= 64 << 10:
            return 200
        return 50 if self.bytes <= 1 << 20 else 6


def time_case(case: Case, backend: str, group, rank: int) -> list[float]:
    """Seconds of each iteration on this rank. Raises if a result is wrong."""
    import torch

    from torch_ccl.cli.operations import OPERATIONS, Setting

    dtype = getattr(torch, case.dtype)
    count = max(1, case.bytes // dtype.itemsize)
    steps = OPERATIONS[case.op](Setting(rank, case.ranks, count, dtype, group))
    times = []
    for i in range(WARM_UP + case.iterations()):
        steps.fill(i)
        start = time.perf_counter_ns()
        steps.call()
        times.append((time.perf_counter_ns() - start) * 1e-9)
        last = i + 1 == WARM_UP + case.iterations()
        if backend != "fake" and not steps.is_right(i, last):
            raise AssertionError(f"{backend}: wrong result of {case} on rank {rank}, iteration {i}")
    return times[WARM_UP:]


def rank_main(rank: int, ranks: int, store: str, backends: list[str], pipe: Connection) -> None:
    """Serves (case, backend) requests until None comes."""
    faulthandler.dump_traceback_later(BOUND_S, exit=True)
    os.setsid()  # as torchrun does; the scheduler groups processes by session
    import torch
    import torch.distributed as dist

    import torch_ccl  # noqa: F401

    if "fake" in backends:
        import torch.testing._internal.distributed.fake_pg
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    groups = {backend: dist.new_group(backend=backend) for backend in backends}
    pipe.send(None)
    try:
        while (request := pipe.recv()) is not None:
            case, backend = request
            faulthandler.dump_traceback_later(BOUND_S, exit=True)
            pipe.send(time_case(case, backend, groups[backend], rank))
    except BaseException:
        pipe.send(traceback.format_exc())
        os._exit(1)
    dist.destroy_process_group()


class Ranks:
    """Processes that time a case when asked."""

    def __init__(self, pipes: list[Connection]):
        self._pipes = pipes

    def time(self, case: Case, backend: str) -> list[float]:
        """For each iteration the maximum over the ranks, in seconds."""
        for pipe in self._pipes:
            pipe.send((case, backend))
        per_rank = []
        for pipe in self._pipes:
            answer = pipe.recv()
            if isinstance(answer, str):
                raise RuntimeError(answer)
            per_rank.append(answer)
        half = 0.5 if case.op == "ping_pong" else 1.0
        return [half * max(times) for times in zip(*per_rank, strict=True)]


@contextmanager
def running_ranks(ranks: int, backends: list[str]) -> Iterator[Ranks]:
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for rank in range(ranks):
                mine, theirs = context.Pipe()
                store = str(Path(directory) / "store")
                process = context.Process(
                    target=rank_main, args=(rank, ranks, store, backends, theirs), daemon=True
                )
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(mine)
            for pipe in pipes:
                pipe.recv()
            yield Ranks(pipes)
            for pipe in pipes:
                pipe.send(None)
            for process in processes:
                process.join(30)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
