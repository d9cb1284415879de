#!/usr/bin/env python3
"""Runs torchft's own tests, which its package contains, on Gloo and on ccl in Gloo's place.

tests/torchft_suite/run.py                          both, and what passes on Gloo only
tests/torchft_suite/run.py --backend ccl --tests 'GlooMultiPg.*broadcast'

torchft is that of .venv/applications. A test that fails runs again, alone: several of them allow
a second or less for what takes longer on a busy machine.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support.torchft_suite import passed, run_suite


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["gloo", "ccl"], help="by default both")
    parser.add_argument("--tests", metavar="REGEX", default="", help="only names that match")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    backends = [arguments.backend] if arguments.backend else ["gloo", "ccl"]
    results = {}
    for backend in backends:
        results[backend] = run_suite(backend, arguments.tests)
        for name, result in results[backend].items():
            print(f"{backend:4}  {result['outcome']:7}  {name}")
        for name, result in results[backend].items():
            if result["outcome"] == "failed":
                print(f"==== {backend}: {name}\n{result['error']}")
    for backend in backends:
        outcomes = [result["outcome"] for result in results[backend].values()]
        counts = (f"{outcomes.count(o)} {o}" for o in ("passed", "failed", "skipped"))
        print(f"{backend}: {', '.join(counts)}")
    only_gloo = passed(results.get("gloo", {})) - passed(results.get("ccl", {}))
    if len(backends) == 2:
        print(f"passed on Gloo only: {', '.join(sorted(only_gloo)) or 'none'}")
    return int(len(backends) == 2 and bool(only_gloo))


if __name__ == "__main__":
    sys.exit(main())
