"""Runs the checks of the stand-in accelerator, in an interpreter in which it is loaded.

python tests/support/standin_checks.py [name ...]    needs the environment of standin_device.py

Runs every check in a forked process and prints one line of JSON per check: its name, and its
failure or null. Forking also shows that loading the device starts no thread.
"""

import faulthandler
import json
import multiprocessing
import sys
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # as a program, too
from support import (  # noqa: F401  (they register their checks)
    standin_memory,
    standin_numbers,
    standin_streams,
    standin_training,
)
from support.standin_helpers import BOUND_S, CHECKS


def run_in_child(function, connection) -> None:
    faulthandler.dump_traceback_later(BOUND_S, exit=True)
    try:
        function()
        connection.send(None)
    except BaseException:
        connection.send(traceback.format_exc())


def failure_of(function) -> str | None:
    mine, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=run_in_child, args=(function, theirs))
    process.start()
    theirs.close()
    try:
        failure = mine.recv()
    except EOFError:
        failure = "exited without a result"
    process.join()
    return failure or (f"exit code {process.exitcode}" if process.exitcode else None)


if __name__ == "__main__":
    for name, function in CHECKS.items():
        if name in sys.argv[1:] or not sys.argv[1:]:
            print(json.dumps({"name": name, "failure": failure_of(function)}), flush=True)
