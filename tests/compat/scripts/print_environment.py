"""Prints where this rank runs, and what the settings of a launch line have come to in it."""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def show(**more: int) -> None:
    torch.ones(1 << 20).sum()  # by all threads: OpenMP binds them when they are first needed
    preloaded = "libiomp5.so" in Path("/proc/self/maps").read_text()
    found = {
        "rank": dist.get_rank(),
        "size": dist.get_world_size(),
        "host": socket.gethostname(),
        "libiomp5": preloaded,
        "blocktime_ms": ctypes.CDLL(None).kmp_get_blocktime() if preloaded else None,
        "threads": torch.get_num_threads(),
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    # At once: with `python -u`, labels of -l stand before each piece.
    sys.stdout.write(json.dumps({**found, **more}) + "\n")
