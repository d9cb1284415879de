"""What a process holds: descriptors by kind, threads, mappings and pages of shared memory."""

import re
import time
from collections import Counter
from pathlib import Path

Resources = Counter
SHARED_MEMORY = "/memfd:tccl"
SETTLE_S = 2.0


def kind_of(target: str) -> str:
    if target.startswith(SHARED_MEMORY):
        return "shared memory"
    return re.sub(r":\[\d+\]$", "", target) if ":[" in target else "file"


def descriptors() -> Counter:
    kinds = Counter()
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = str(each.readlink())
        except OSError:  # that of this directory, or closed by another thread
            continue
        kinds[kind_of(target)] += 1
        if target.startswith(SHARED_MEMORY):
            kinds["shared pages"] = each.stat().st_blocks // 8
    return kinds


def resources() -> Resources:
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = descriptors()
    found["mappings"] = len({line.split()[4] for line in maps if SHARED_MEMORY in line})
    found["threads"] = sum(1 for _ in Path("/proc/self/task").iterdir())
    return found


def settled_resources(limit: Resources | None = None) -> Resources:
    """The monitor thread frees what closed groups held within some tenths of a second. Waits until
    no kind exceeds `limit`, or for some time."""
    end = time.monotonic() + SETTLE_S
    while True:
        found = resources()
        if limit is None or not exceeding(found, limit) or time.monotonic() >= end:
            return found
        time.sleep(0.02)


def exceeding(found: Resources, limit: Resources) -> dict[str, str]:
    return {k: f"{limit[k]} -> {found[k]}" for k in found if found[k] > limit[k]}
