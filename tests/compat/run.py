"""make compat DOCS=<directory>: the scripts of the documents there, run on two ranks in every way,
and over virtual hosts by the commands of the documents.

Nothing of the documents is kept: scripts are cut out of them when this runs. documents.py says
which, what is changed in them and what they must print.
"""

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from documents import (
    EDITS,
    HOSTS_LINES,
    SCRIPTS,
    HostsLine,
    Script,
    commands,
    cut,
    cut_hosts_line,
    fixed_port,
)
from launching import WAYS, run_script
from over_hosts import run_over_hosts


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


def passes_over_hosts(line: HostsLine, block: str, text: str) -> bool:
    try:
        hosts, out, _ = run_over_hosts(line.hosts, commands(block), {line.script: text})
        line.check(out, block, hosts)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return False
    return True


class Report:
    def __init__(self) -> None:
        self.passed = self.failed = 0

    def add(self, way: str, passed: bool) -> None:
        self.passed += passed
        self.failed += not passed
        print(f"    {way:<20}{'passed' if passed else 'FAILED'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compat DOCS=<directory>")
    parser.add_argument("docs", type=Path, help="the directory that holds the documents")
    parser.add_argument("--only", default="", help="scripts whose name has this in it")
    given = parser.parse_args()
    report = Report()
    try:
        for script in SCRIPTS:
            if given.only in script.name:
                print(f"{script.name} of document {script.document}", flush=True)
                print_edits(script.name)
                text = cut(script, given.docs)
                for way in WAYS:
                    report.add(way, passes(script, way, text))
        for line in HOSTS_LINES:
            if given.only in line.name:
                print(f"{line.name} of document {line.document}", flush=True)
                print_edits(line.name)
                print_edits(line.script)
                block, text = cut_hosts_line(line, given.docs)
                report.add(f"{line.hosts} virtual hosts", passes_over_hosts(line, block, text))
    except AssertionError as error:
        parser.error(str(error))
    print(f"{report.passed} passed, {report.failed} failed")
    return report.failed != 0


if __name__ == "__main__":
    sys.exit(main())
