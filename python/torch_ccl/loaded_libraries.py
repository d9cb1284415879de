"""The shared libraries that this process has loaded (from /proc/self/maps)."""

from pathlib import Path


def loaded_libraries() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = (fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6)
    return sorted({path for path in paths if ".so" in path})
