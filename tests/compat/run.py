"""make compat DOCS=<directory>: the scripts of the documents there, run on two ranks in every way.

Nothing of the documents is kept: scripts are cut out of them when this runs. documents.py says
which, what is changed in them and what they must print.
"""

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from documents import EDITS, SCRIPTS, Script, cut, fixed_port
from launching import WAYS, run_script


def print_edits(name: str) -> None:
    for edit in EDITS:
        if edit.script == name:
            print(f"    {edit.old!r} becomes {edit.new!r}: {edit.reason}")


def passes(script: Script, way: str, text: str) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / script.name
        path.write_text(text)
        try:
            for rank in run_script(way, path, port=fixed_port(text)):
                script.check(rank)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compat DOCS=<directory>")
    parser.add_argument("docs", type=Path, help="the directory that holds the documents")
    docs = parser.parse_args().docs
    failed = 0
    for script in SCRIPTS:
        print(f"{script.name} of document {script.document}", flush=True)
        print_edits(script.name)
        try:
            text = cut(script, docs)
        except AssertionError as error:
            parser.error(str(error))
        for way in WAYS:
            passed = passes(script, way, text)
            failed += not passed
            print(f"    {way:<20}{'passed' if passed else 'FAILED'}", flush=True)
    print(f"{len(SCRIPTS) * len(WAYS) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
