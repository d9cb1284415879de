"""Processes that the benches run on: each is a rank in a session of its own and answers requests.

    with processes(2, Worker, "ccl") as ranks:
        answers = ranks.ask(request)  # one of each rank

In each process `Worker(place, "ccl")` is made once and called with every request.
"""

import faulthandler
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

BOUND_S = 600  # for one request
START_METHOD = "spawn"  # forked processes would share pages, which the bench of memory would see


@dataclass(frozen=True)
class Place:
    rank: int
    size: int
    store: str

    def join(self, backend: str) -> None:
        """Makes the default group."""
        import torch
        import torch.distributed as dist

        import torch_ccl  # noqa: F401

        if backend == "fake":
            import torch.testing._internal.distributed.fake_pg
        torch.set_num_threads(1)
        dist.init_process_group(
            backend,
            init_method=f"file://{self.store}",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=120),
        )


class Failure(str):
    """What a rank answers when it raised: the traceback."""


def _process_main(worker: Callable, place: Place, args: tuple, pipe: Connection) -> None:
    """Answers requests until None comes."""
    faulthandler.dump_traceback_later(BOUND_S, exit=True)
    warnings.simplefilter("ignore", FutureWarning)  # torch renames calls; tables stay readable
    os.setsid()  # as torchrun does; the scheduler groups processes by session
    try:
        answer = worker(place, *args)
        pipe.send("ready")
        while (request := pipe.recv()) is not None:
            faulthandler.dump_traceback_later(BOUND_S, exit=True)
            pipe.send(answer(request))
    except BaseException:
        pipe.send(Failure(traceback.format_exc()))
        os._exit(1)
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _received(pipe: Connection, rank: int) -> Any:
    try:
        answer = pipe.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} ended without a word") from None
    if isinstance(answer, Failure):
        raise RuntimeError(answer)
    return answer


class Processes:
    """One for each rank, in order."""

    def __init__(self, pipes: list[Connection]):
        self._pipes = pipes

    def ask(self, request: Any) -> list:
        for pipe in self._pipes:
            pipe.send(request)
        return self.answers()

    def answers(self) -> list:
        """In the order of the ranks. Raises at the first that failed: others may wait for it."""
        ranks = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        answers = [None] * len(self._pipes)
        while ranks:
            for pipe in wait(list(ranks)):
                rank = ranks.pop(pipe)
                answers[rank] = _received(pipe, rank)
        return answers

    def dismiss(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


@contextmanager
def processes(size: int, worker: Callable, *args: Any) -> Iterator[Processes]:
    # On some CPUs torch's bfloat16 matrix product is wrong or missing beyond this instruction set.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    context = multiprocessing.get_context(START_METHOD)
    started, pipes = [], []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for rank in range(size):
                mine, theirs = context.Pipe()
                place = Place(rank, size, str(Path(directory) / "store"))
                process = context.Process(
                    target=_process_main, args=(worker, place, args, theirs), daemon=True
                )
                process.start()
                theirs.close()
                started.append(process)
                pipes.append(mine)
            ranks = Processes(pipes)
            ranks.answers()
            yield ranks
            ranks.dismiss()
            for process in started:
                process.join(30)
        finally:
            for process in started:
                if process.is_alive():
                    process.kill()
