#!/usr/bin/env python3
"""Prints a compilation database with one command for each .cc file of a folder.

    tools/compile_commands.py build/release/compile_commands.json binding

The build may compile the folder as one file (CMake's unity builds), for which the database has one
command. Here every file gets that command with its own name. Options for g++'s precompiled headers,
which clang cannot read, are left out.
"""

import json
import re
import sys
from pathlib import Path

PRECOMPILED = re.compile(r" -Winvalid-pch| -include \S*cmake_pch\.hxx")


def is_of(folder: str, entry: dict) -> bool:
    """Objects are in <build directory>/<folder>/CMakeFiles/."""
    return f" {folder}/CMakeFiles/" in entry["command"]


def main() -> None:
    database, folder = Path(sys.argv[1]), sys.argv[2]
    entry = next(e for e in json.loads(database.read_text()) if is_of(folder, e))
    command = PRECOMPILED.sub("", entry["command"])
    files = sorted(str(path.resolve()) for path in Path(folder).glob("*.cc"))
    entries = [
        {**entry, "file": file, "command": command.replace(entry["file"], file)} for file in files
    ]
    json.dump(entries, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
