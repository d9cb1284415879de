"""Runs the checks of staging accelerator tensors, on the stand-in accelerator.

python tests/support/staging_checks.py [--jobs 3] [name ...]

It needs the environment of standin_device.py. --jobs is how many checks run at a time.

Prints one line of JSON per check: its name, and its failure or null.
"""

import argparse
import json
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # as a program, too
from support import staging_failures  # noqa: F401  (registers its checks)
from support.ranks import started_ranks
from support.staging_ranks import CHECKS, SIZE
from support.staging_results import PREPARE

#: Checks in which this rank is killed.
DYING = {name: 1 for name in CHECKS if name.startswith("a_peer_that_dies")}


def run_check(name: str) -> None:
    with started_ranks(SIZE, CHECKS[name], prepare=PREPARE.get(name)) as ranks:
        pass
    failures = [r.failure for number, r in enumerate(ranks) if number != DYING.get(name)]
    assert not any(failures), "\n".join(filter(None, failures))


def failure_of(name: str) -> str | None:
    try:
        run_check(name)
    except Exception:
        return traceback.format_exc()
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(CHECKS))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    with ThreadPoolExecutor(arguments.jobs) as threads:
        failures = list(threads.map(failure_of, arguments.names))
    for name, failure in zip(arguments.names, failures, strict=True):
        print(json.dumps({"name": name, "failure": failure}))
    return sum(failure is not None for failure in failures)


if __name__ == "__main__":
    sys.exit(main())
