#!/usr/bin/env python3
"""Downloads what building the extension needs of torch: headers and three libraries.

    tools/fetch_torch.py 2.12 2.15.0     prints one directory per version, separated by semicolons

A version without a patch number means its newest release. The directories, build/torch/<version>,
have 520 MB each; a version that is there already is not downloaded again.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {f"torch/lib/lib{name}.so" for name in ("torch_cpu", "torch_python", "c10")}


def is_needed(name: str) -> bool:
    return name.startswith("torch/include/") or name in LIBRARIES or name == "torch/version.py"


def download(version: str, directory: Path) -> Path:
    """Returns the wheel."""
    wanted = version if version.count(".") >= 2 else f"{version}.*"
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    command = [sys.executable, "-m", "pip", "download", *options, f"torch=={wanted}"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return next(directory.glob("*.whl"))


def fetch(version: str) -> Path:
    target = ROOT / "build/torch" / version
    if not target.exists():
        print(f"fetch_torch: downloading torch {version}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as directory:
            unpacked = Path(directory) / "unpacked"
            with zipfile.ZipFile(download(version, Path(directory))) as wheel:
                wheel.extractall(unpacked, filter(is_needed, wheel.namelist()))
            shutil.move(unpacked, target)
    return target / "torch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("versions", nargs="+", metavar="version")
    print(";".join(str(fetch(version)) for version in parser.parse_args().versions))


if __name__ == "__main__":
    main()
