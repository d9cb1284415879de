"""`python setup.py install` for those who are used to it: every command is a call of pip.

How the package is built stands in pyproject.toml, and pip builds by that; it never runs this file.
"""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent

COMMANDS = {
    "install": "build the package and install it into this interpreter",
    "build": "the same as bdist_wheel",
    "bdist_wheel": "build the package as a wheel",
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(2, f"setup.py: {message}; for all else use pip or make: docs/installing.md\n")


def parse() -> argparse.Namespace:
    parser = Parser(
        prog="setup.py",
        description=__doc__.splitlines()[0],
        epilog="\n".join(f"{name:12} {does}" for name, does in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commands", nargs="+", metavar="command", choices=COMMANDS)
    parser.add_argument("--user", action="store_true", help="install for this user alone")
    parser.add_argument("--prefix", help="install under this directory")
    parser.add_argument("--root", help="install as if this directory were /")
    parser.add_argument("-d", "--dist-dir", default=ROOT / "dist", help="where wheels go (dist)")
    return parser.parse_args()


def place(options: argparse.Namespace) -> list[str]:
    """Where to install, in pip's words, which are the same."""
    named = {"--prefix": options.prefix, "--root": options.root}
    words = [f"{name}={value}" for name, value in named.items() if value]
    return ["--user", *words] if options.user else words


def pip_words(command: str, options: argparse.Namespace) -> list[str]:
    if command == "install":
        return ["install", *place(options)]
    return ["wheel", f"--wheel-dir={options.dist_dir}"]


def check_interpreter() -> None:
    """The extension is built with what this interpreter has, above all against its torch."""
    needed = {"pip": "pip", "torch": "torch", "scikit_build_core": "scikit-build-core"}
    missing = [name for module, name in needed.items() if not importlib.util.find_spec(module)]
    if missing:
        sys.exit(
            f"setup.py: {sys.executable} has no {', no '.join(missing)}: "
            f"install what is missing, or use `make build`, which prepares .venv"
        )


def main() -> int:
    options = parse()
    check_interpreter()
    for command in options.commands:
        words = [*pip_words(command, options), "--no-build-isolation", "--no-deps", str(ROOT)]
        status = subprocess.call([sys.executable, "-m", "pip", *words])
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
