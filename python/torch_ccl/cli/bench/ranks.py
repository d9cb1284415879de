"""Rank processes of the benchmarks: each is in a session of its own and answers requests.

    with start_ranks(2, Handler, "ccl") as ranks:
        replies = ranks.request(message)  # one reply of each rank

In each process `Handler(process, "ccl")` is made once and called with every request.
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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

REQUEST_TIMEOUT_S = 600
EXIT_TIMEOUT_S = 30
INIT_TIMEOUT = timedelta(seconds=120)
START_METHOD = "spawn"  # forked processes share pages, which changes the measured memory

Handler = Callable[[Any], Any]


@dataclass(frozen=True)
class BenchProcess:
    """What a handler knows of its process."""

    rank: int
    size: int
    store: str

    def init_process_group(self, backend: str) -> None:
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
            timeout=INIT_TIMEOUT,
        )


class Failure(str):
    """The reply of a rank that raised: its traceback."""


def answer_requests(pipe: Connection, make_handler: Callable[[], Handler]) -> None:
    """Sends "ready" once the handler is made, then its reply to every request, until the request
    is None. Sends a Failure and exits if the handler raises."""
    faulthandler.dump_traceback_later(REQUEST_TIMEOUT_S, exit=True)
    warnings.simplefilter("ignore", FutureWarning)  # torch deprecates calls that we time
    try:
        handle = make_handler()
        pipe.send("ready")
        while (request := pipe.recv()) is not None:
            faulthandler.dump_traceback_later(REQUEST_TIMEOUT_S, exit=True)
            pipe.send(handle(request))
    except BaseException:
        pipe.send(Failure(traceback.format_exc()))
        os._exit(1)
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _process_main(
    handler: Callable[..., Handler], process: BenchProcess, args: tuple[Any, ...], pipe: Connection
) -> None:
    os.setsid()  # as torchrun does; the scheduler groups processes by session
    answer_requests(pipe, lambda: handler(process, *args))


def _receive(pipe: Connection, rank: int) -> Any:
    try:
        reply = pipe.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} exited without a reply") from None
    if isinstance(reply, Failure):
        raise RuntimeError(reply)
    return reply


class RankConnections:
    """A connection to each rank, in the order of the ranks."""

    def __init__(self, pipes: list[Connection]):
        self._pipes = pipes

    def request(self, message: Any) -> list[Any]:
        """Sends the message to every rank and returns the replies."""
        for pipe in self._pipes:
            pipe.send(message)
        return self.replies()

    def replies(self) -> list[Any]:
        """Raises at the first rank that fails, because the others may wait for it."""
        pending = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        replies = [None] * len(self._pipes)
        while pending:
            for pipe in wait(list(pending)):
                assert isinstance(pipe, Connection)
                rank = pending.pop(pipe)
                replies[rank] = _receive(pipe, rank)
        return replies

    def stop(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


@contextmanager
def start_ranks(
    size: int, handler: Callable[..., Handler], *args: Any
) -> Iterator[RankConnections]:
    # On some CPUs torch's bfloat16 matrix product is wrong or missing beyond this instruction set.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    context = multiprocessing.get_context(START_METHOD)
    started: list[BaseProcess] = []
    pipes: list[Connection] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for rank in range(size):
                ours, theirs = context.Pipe()
                process = BenchProcess(rank, size, str(Path(directory) / "store"))
                child = context.Process(  # type: ignore[attr-defined]
                    target=_process_main, args=(handler, process, args, theirs), daemon=True
                )
                child.start()
                theirs.close()
                started.append(child)
                pipes.append(ours)
            ranks = RankConnections(pipes)
            ranks.replies()  # "ready"
            yield ranks
            ranks.stop()
            for child in started:
                child.join(EXIT_TIMEOUT_S)
        finally:
            for child in started:
                if child.is_alive():
                    child.kill()
