"""The rank processes of `torch-ccl bench --footprint`."""

import ctypes
import gc
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from torch_ccl.cli.bench.cases import goal_cases
from torch_ccl.cli.bench.operations import OPERATIONS, Arguments
from torch_ccl.cli.bench.ranks import BenchProcess

TIMEOUT = timedelta(seconds=120)


class WaitHandler:
    """Request: (operation, seconds). Rank 1 calls the operation that much later than rank 0.
    Reply: the CPU time of all threads during the call, in % of a CPU."""

    def __init__(self, process: BenchProcess, backend: str):
        process.init_process_group(backend)
        self._rank = process.rank

    def __call__(self, request: tuple[str, float]) -> float:
        op, wait_s = request
        x = torch.ones(2)
        calls: dict[str, Callable[[], object]] = {
            "recv": lambda: dist.recv(x, 1) if self._rank == 0 else dist.send(x, 0),
            "barrier": dist.barrier,
            "all_reduce": lambda: dist.all_reduce(x),
        }
        dist.barrier()
        if self._rank == 1:
            time.sleep(wait_s)
        cpu, start = time.process_time(), time.perf_counter()
        calls[op]()
        return 100 * (time.process_time() - cpu) / (time.perf_counter() - start)


def pss_kib() -> dict[str, int]:
    """Pss of this process and its kinds (Pss_Anon, Pss_File, Pss_Shmem), without freed memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name.startswith("Pss") and name != "Pss_Dirty":
            fields[name] = int(amount.split()[0])
    return fields


class MemoryHandler:
    """Requests: "init", "run" and "read" (reply: the memory of this rank).

    One step at a time, because Pss divides shared memory by the number of processes that map it:
    all ranks must have finished a step before one of them reads.
    """

    def __init__(self, process: BenchProcess, backend: str):
        self._process = process
        self._backend = backend

    def __call__(self, request: str) -> dict[str, int] | None:
        if request == "read":
            return pss_kib()
        {"init": self._init, "run": self._run}[request]()
        return None

    def _init(self) -> None:
        self._process.init_process_group(self._backend)

    def _run(self) -> None:
        """Every operation, dtype and size of the goals, on all ranks of the group."""
        for op, size_bytes, dtype_name in dict.fromkeys(
            (case.op, case.bytes, case.dtype) for case in goal_cases()
        ):
            dtype = getattr(torch, dtype_name)
            count = max(1, size_bytes // dtype.itemsize)
            rank, size = self._process.rank, self._process.size
            operation = OPERATIONS[op](Arguments(rank, size, count, dtype, dist.group.WORLD))
            operation.fill(0)
            operation.call()
            if self._backend != "fake" and not operation.is_correct(0, True):
                raise AssertionError(f"{self._backend}: wrong result of {op}, {size_bytes} B")


class StartHandler:
    """Request: a backend. Reply: the times at which init_process_group was called and at which the
    first barrier returned."""

    def __init__(self, process: BenchProcess, port: int):
        torch.set_num_threads(1)
        self._process = process
        self._store = TCPStore("127.0.0.1", port, timeout=TIMEOUT)

    def __call__(self, backend: str) -> tuple[float, float]:
        start = time.monotonic()  # the same clock in all processes
        dist.init_process_group(
            backend,
            store=self._store,
            rank=self._process.rank,
            world_size=self._process.size,
            timeout=TIMEOUT,
        )
        dist.barrier()
        return start, time.monotonic()
