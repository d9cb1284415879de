#!/usr/bin/env python3
"""Makes a release from the git tag of this version: wheels, sources, checksums and notes.

    tools/release.py dist "2.13 2.15"     fills dist/v0.1.0, from the tag v0.1.0, for these torches

The version is that of pyproject.toml. HEAD must be at its tag, without changes. What is built comes
from a clean copy of the tag, and is checked before its checksums are written. `make release` calls
this file; VENV names the environment with the tools.
"""

import argparse
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / os.environ.get("VENV", ".venv")
CHECKSUMS, NOTES = "SHA256SUMS", "NOTES.md"


class Refusal(Exception):
    """Why there is no release; one line for the user."""


def version_of(root: Path) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
    ).stdout


def check_tag(root: Path, tag: str) -> None:
    if tag not in git(root, "tag", "--points-at", "HEAD").split():
        raise Refusal(f"HEAD is not at the tag {tag} of pyproject.toml's version: git tag {tag}")
    if changed := git(root, "status", "--porcelain"):
        first = changed.splitlines()[0].split(maxsplit=1)[1]
        raise Refusal(f"the tree has changes that are not committed: {first}")


def section(changelog: str, name: str) -> str:
    """A section of CHANGELOG.md without its heading, or an empty string."""
    heading = rf"^## {re.escape(name)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def notes(changelog: str, version: str) -> str:
    if section(changelog, "Unreleased"):
        raise Refusal(f"CHANGELOG.md has entries under Unreleased: move them to {version}")
    text = section(changelog, version)
    if not text:
        raise Refusal(f"CHANGELOG.md has no section {version}")
    return text + "\n"


def write_copy(root: Path, tag: str, directory: Path) -> None:
    """What is committed, and nothing else."""
    archive = subprocess.run(
        ["git", "archive", tag], cwd=root, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")


def make(directory: Path, *arguments: str) -> None:
    subprocess.run(["make", "--no-print-directory", *arguments], cwd=directory, check=True)


def build(source: Path, dist: Path, torches: str) -> None:
    (source / "build").mkdir()
    (ROOT / "build/torch").mkdir(parents=True, exist_ok=True)
    (source / "build/torch").symlink_to(ROOT / "build/torch")  # downloads, 520 MB each
    make(source, "wheel", "sdist", f"VENV={VENV}", f"DIST={dist}", f"TORCH={torches}")


def check_contents(wheel: Path, torches: str) -> None:
    """Its tag, and an extension for each of the torches."""
    if platform.machine() == "x86_64" and "manylinux_2_28" not in wheel.name:
        raise Refusal(f"{wheel.name} needs a newer glibc than 2.28")
    found = set(
        re.findall(r"torch_ccl/extensions/torch([\d.]+)/", "\n".join(ZipFile(wheel).namelist()))
    )
    wanted = {".".join(torch.split(".")[:2]) for torch in torches.split()}
    if found != wanted:
        raise Refusal(
            f"{wheel.name} has extensions for torch {sorted(found)}, not {sorted(wanted)}"
        )


def check(dist: Path, torches: str) -> None:
    """Contents, metadata, what the libraries need, and an all_reduce with each torch."""
    packages = sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")])
    (wheel,) = dist.glob("torch_ccl-*.whl")
    check_contents(wheel, torches)
    for command in (["twine", "check", "--strict", *packages], ["auditwheel", "show", wheel]):
        subprocess.run([VENV / "bin" / command[0], *command[1:]], check=True)
    make(ROOT, "test-wheel", f"VENV={VENV}", f"WHEEL={wheel}", f"TORCH={torches}")


def write_checksums(dist: Path) -> None:
    """In the format of sha256sum."""
    files = sorted(path for path in dist.iterdir() if path.name not in (CHECKSUMS, NOTES))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / CHECKSUMS).write_text("".join(sums))


def release(root: Path, dist: Path, torches: str) -> Path:
    """Returns the directory of the release, which is emptied first."""
    version = version_of(root)
    tag = f"v{version}"
    check_tag(root, tag)
    text = notes((root / "CHANGELOG.md").read_text(), version)
    target = dist.resolve() / tag
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory:
        write_copy(root, tag, Path(directory))
        build(Path(directory), target, torches)
    check(target, torches)
    (target / NOTES).write_text(text)
    write_checksums(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("torches", nargs="?", default="", metavar="torch versions")
    options = parser.parse_args()
    try:
        print(f"release: {release(ROOT, options.dist, options.torches)}")
    except Refusal as problem:
        sys.exit(f"release: {problem}")


if __name__ == "__main__":
    main()
