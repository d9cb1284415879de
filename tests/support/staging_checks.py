"""Runs the checks of staging accelerator tensors, on the stand-in accelerator.

python tests/support/staging_checks.py [name ...]    needs the environment of standin_device.py

Prints one line of JSON per check: its name, and its failure or null.
"""

import json
import sys
import traceback
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


def main() -> int:
    failures = 0
    for name in sys.argv[1:] or CHECKS:
        failure = None
        try:
            run_check(name)
        except Exception:
            failure = traceback.format_exc()
            failures += 1
        print(json.dumps({"name": name, "failure": failure}), flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
