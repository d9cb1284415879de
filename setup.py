"""`python setup.py install` for users of old instructions: every command calls pip.

pyproject.toml defines the build; pip never runs this file.
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
        self.exit(2, f"setup.py: {message}; otherwise use pip or make: docs/installing.md\n")


def parse() -> argparse.Namespace:
    parser = Parser(
        prog="setup.py",
        description=__doc__.splitlines()[0],
        epilog="\n".join(f"{name:12} {text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commands", nargs="+", metavar="command", choices=COMMANDS)
    parser.add_argument("--user", action="store_true", help="install for this user only")
    parser.add_argument("--prefix", help="install under this directory")
    parser.add_argument("--root", help="install below this directory instead of /")
    parser.add_argument("-d", "--dist-dir", default=ROOT / "dist", help="directory for wheels")
    return parser.parse_args()


def location_options(options: argparse.Namespace) -> list[str]:
    """Where to install; pip has the same options."""
    given = {"--prefix": options.prefix, "--root": options.root}
    arguments = [f"{name}={value}" for name, value in given.items() if value]
    return ["--user", *arguments] if options.user else arguments


def pip_arguments(command: str, options: argparse.Namespace) -> list[str]:
    if command == "install":
        return ["install", *location_options(options)]
    return ["wheel", f"--wheel-dir={options.dist_dir}"]


def check_interpreter() -> None:
    """The extension is built against the torch of this interpreter."""
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
        arguments = [
            *pip_arguments(command, options),
            "--no-build-isolation",
            "--no-deps",
            f"--config-settings=build-dir={ROOT / 'build/release'}",
            str(ROOT),
        ]
        status = subprocess.call([sys.executable, "-m", "pip", *arguments])
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
