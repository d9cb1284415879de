#!/usr/bin/env python3
"""Check that the folders of the C++ code include each other only as docs/architecture.md allows.

ALLOWED is the whole rule: a folder may include itself, the public headers of include/tccl, and the
folders and single headers listed behind it. The same table stands in docs/architecture.md ("The
layers"); this script compares the two, so that the page and the code cannot differ.

    tools/include_graph.py            exit status 1 and one line per forbidden include
    tools/include_graph.py --table    print the table for docs/architecture.md
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/architecture.md"

# From the lowest layer to the highest.
ALLOWED: dict[str, tuple[str, ...]] = {
    "base": (),
    "topology": ("base",),
    "operation": ("base",),
    "config": ("base", "operation"),
    "kernels": ("base", "operation"),
    "health": ("base",),
    "rendezvous": ("base", "config", "topology"),
    "transport": ("base", "topology", "operation", "health"),
    "transport/shm": ("base", "topology", "operation", "health", "kernels", "transport"),
    "transport/ofi": ("base", "config", "topology", "operation", "health", "kernels", "transport"),
    "algorithms": ("base", "topology", "operation", "kernels", "transport"),
    "planner": ("base", "config", "operation", "kernels", "algorithms"),
    "communicator": (
        "base",
        "config",
        "topology",
        "operation",
        "kernels",
        "health",
        "rendezvous",
        "transport",
        "transport/shm",
        "transport/ofi",
        "algorithms",
        "planner",
    ),
    "info": ("base", "config", "kernels", "rendezvous", "planner"),
    "binding": ("base/clock.h",),  # header-only: one way to compute deadlines
}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def folder_of(path: Path) -> str:
    if path.is_relative_to(ROOT / "binding"):
        return "binding"
    return path.relative_to(ROOT / "src").parent.as_posix()


def included_folder(name: str) -> str | None:
    """Return the folder of src/ that an include names, or None for a header beside the file."""
    folder = name.rpartition("/")[0]
    return None if folder == "tccl" else folder or None


def sources() -> list[Path]:
    return sorted(
        path
        for top in ("src", "binding")
        for path in (ROOT / top).rglob("*")
        if path.suffix in (".h", ".cc")
    )


def forbidden_includes() -> list[str]:
    found = []
    for path in sources():
        folder = folder_of(path)
        if folder not in ALLOWED:
            found.append(f"{path.relative_to(ROOT)}: src/{folder} is not in tools/include_graph.py")
            continue
        for match in INCLUDE.finditer(path.read_text()):
            other = included_folder(match[1])
            if other is None or other == folder or {other, match[1]} & set(ALLOWED[folder]):
                continue
            line = path.read_text()[: match.start()].count("\n") + 1
            where = f"{path.relative_to(ROOT)}:{line}"
            found.append(f'{where}: {folder} must not include {other} ("{match[1]}")')
    return found


def table() -> str:
    lines = ["| folder | may include |", "|---|---|"]
    for folder, below in ALLOWED.items():
        lines.append(f"| `{folder}` | {', '.join(below) or 'nothing but `include/tccl`'} |")
    return "\n".join(lines)


def main() -> int:
    if sys.argv[1:] == ["--table"]:
        print(table())
        return 0
    problems = forbidden_includes()
    if table() not in PAGE.read_text():
        problems.append(f"{PAGE.relative_to(ROOT)}: the table of layers differs from {__file__}")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
