"""Runs the fuzz programs of build/fuzz, one after another: `make fuzz`.

    tests/fuzz/run.py                          all, 10 minutes each
    tests/fuzz/run.py --seconds 60 settings    only those named
    tests/fuzz/run.py --minimize               puts the smallest corpora into the repository

What is found new goes to build/fuzz/corpus, inputs that crash to build/fuzz/crashes. Exits with 1
after a crash.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/fuzz"
CORPUS = Path(__file__).with_name("corpus")
HARNESSES = sorted(
    path.name.removesuffix("_fuzz.cc") for path in Path(__file__).parent.glob("*_fuzz.cc")
)
MAX_BYTES = 16384


def program(harness: str) -> Path:
    return BUILD / "tests" / f"{harness}_fuzz"


def found(harness: str) -> Path:
    directory = BUILD / "corpus" / harness
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def kept(harness: str) -> Path:
    directory = CORPUS / harness
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def call(command: list) -> tuple[int, str]:
    result = subprocess.run(
        [str(word) for word in command],
        env=os.environ | {"CCL_LOG_LEVEL": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return result.returncode, result.stdout


def fuzz(harness: str, seconds: int) -> bool:
    crashes = BUILD / "crashes" / harness
    crashes.mkdir(parents=True, exist_ok=True)
    code, output = call(
        [
            program(harness),
            f"-max_total_time={seconds}",
            f"-max_len={MAX_BYTES}",
            "-use_value_profile=1",
            "-timeout=20",
            f"-artifact_prefix={crashes}/",
            found(harness),
            kept(harness),
        ]
    )
    done = re.search(r"#(\d+)\s+DONE\s+cov: (\d+)", output)
    if code == 0 and done:
        print(f"{harness:<20} {done[1]:>11} executions, {done[2]} edges", flush=True)
        return True
    print(f"{harness:<20} exit code {code}\n{output[-4000:]}\ninput: in {crashes}", flush=True)
    return False


def minimize(harness: str):
    with tempfile.TemporaryDirectory(dir=BUILD) as directory:
        # Which edges are reached, not how often: a tenth of the inputs.
        options = ["-merge=1", "-use_counters=0", f"-max_len={MAX_BYTES}"]
        code, output = call([program(harness), *options, directory, kept(harness), found(harness)])
        if code != 0:
            sys.exit(output)
        for old in kept(harness).iterdir():
            if not old.name.startswith("crash-"):  # those stay
                old.unlink()
        for new in Path(directory).iterdir():
            (kept(harness) / new.name[:12]).write_bytes(new.read_bytes())
    print(f"{harness:<20} {len(list(kept(harness).iterdir()))} inputs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(HARNESSES)}")
    parser.add_argument("--seconds", type=int, default=600, help="for each program")
    parser.add_argument("--minimize", action="store_true", help="instead of fuzzing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(HARNESSES):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    names = arguments.names or HARNESSES
    if arguments.minimize:
        for name in names:
            minimize(name)
        return 0
    return 0 if all([fuzz(name, arguments.seconds) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
