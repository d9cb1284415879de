"""The ranks that `torch-ccl bench --footprint` asks."""

import ctypes
import gc
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from torch_ccl.cli.goals import GOALS, SIZES
from torch_ccl.cli.operations import OPERATIONS, Setting
from torch_ccl.cli.processes import Place


class Waiter:
    """(operation, seconds): rank 1 comes so much later; rank 0 says what its wait took, in % of a
    core, all threads together."""

    def __init__(self, place: Place, backend: str):
        place.join(backend)
        self._rank = place.rank

    def __call__(self, request: tuple[str, float]) -> float:
        op, wait_s = request
        x = torch.ones(2)
        calls = {
            "recv": lambda: dist.recv(x, 1) if self._rank == 0 else dist.send(x, 0),
            "barrier": dist.barrier,
            "all_reduce": lambda: dist.all_reduce(x),
        }
        dist.barrier()
        if self._rank == 1:
            time.sleep(wait_s)
        used, began = time.process_time(), time.perf_counter()
        calls[op]()
        return 100 * (time.process_time() - used) / (time.perf_counter() - began)


def resident_kib() -> dict[str, int]:
    """Pss of this process and its kinds (Pss_Anon, Pss_File, Pss_Shmem), without what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name.startswith("Pss") and name != "Pss_Dirty":
            fields[name] = int(amount.split()[0])
    return fields


class Holder:
    """Goes through the life of a rank in steps, so that all ranks read their memory in one state:
    Pss divides what is shared by the number of processes that have it."""

    def __init__(self, place: Place, backend: str):
        self._place = place
        self._backend = backend

    def __call__(self, step: str) -> dict[str, int] | None:
        return {"read": resident_kib, "init": self._init, "run": self._run}[step]()

    def _init(self) -> None:
        self._place.join(self._backend)

    def _run(self) -> None:
        place = self._place
        kinds = dict.fromkeys((op, dtype) for op, dtype, _ in GOALS)
        for op, dtype in (*kinds, ("barrier", "float32")):
            for size in SIZES if op != "barrier" else (0,):
                kind = getattr(torch, dtype)
                count = max(1, size // kind.itemsize)
                setting = Setting(place.rank, place.size, count, kind, dist.group.WORLD)
                steps = OPERATIONS[op](setting)
                steps.fill(0)
                steps.call()
                if self._backend != "fake" and not steps.is_right(0, True):
                    raise AssertionError(f"{self._backend}: wrong result of {op} of {size} B")


class Beginner:
    """When init_process_group was called, and when the first barrier had returned."""

    def __init__(self, place: Place, port: int):
        torch.set_num_threads(1)
        self._place = place
        self._store = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=120))

    def __call__(self, backend: str) -> tuple[float, float]:
        place = self._place
        begun = time.monotonic()  # one clock for all processes
        dist.init_process_group(
            backend,
            store=self._store,
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=120),
        )
        dist.barrier()
        return begun, time.monotonic()
