"""Runs functions on N ranks in real processes, and scripts in forked or fresh interpreters.

run_ranks(3, check_something, argument) calls check_something(rank, size, argument) in three
processes with an initialised process group of backend "ccl", and returns their return values. The
processes are forked from a server that has imported torch, so a run takes tenths of a second.
`prepare`, if given, is called with the rank before init_process_group(); `group` holds further
arguments of init_process_group().
Every run has a time limit: a rank that exceeds it prints its Python stack and exits.
"""

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

BOUND_S = 60
NO_GROUP = "no group"  # in place of its arguments: the function initialises it itself

_context = multiprocessing.get_context("forkserver")
# Imported once, in the process from which ranks are forked. DDP and optimizers import
# torch._dynamo, which takes seconds; every test module imports pytest, which takes 0.4 s.
PRELOADED = ["torch", "torch._dynamo", "torch_ccl", "pytest"]
_context.set_forkserver_preload(PRELOADED)


class ForkedRank:
    """The test's view of a rank: its process, and its return value or how it failed."""

    def __init__(self, process, connection):
        self.process = process
        self._connection = connection
        self.value = None
        self.failure = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def finish(self, deadline: float) -> None:
        try:
            if not self._connection.poll(max(0, deadline - time.monotonic())):
                self.failure = "did not finish within its time limit"
            else:
                self.value, self.failure = self._connection.recv()
        except EOFError:
            self.process.join(5)
            self.failure = f"exited without a result, exit code {self.process.exitcode}"
        self.process.join(max(1, deadline - time.monotonic()))


def init_group(rank: int, size: int, store: str, timeout_s: float = BOUND_S, **more) -> None:
    import torch.distributed as dist

    own = {
        "backend": "ccl",
        "init_method": f"file://{store}",
        "rank": rank,
        "world_size": size,
        "timeout": timedelta(seconds=timeout_s),
    }
    dist.init_process_group(**{**own, **more})


def _rank_main(rank, size, store, bound_s, prepare, group, function, args, connection):
    faulthandler.dump_traceback_later(bound_s, exit=True)
    try:
        import torch.distributed as dist

        from support import torch_names  # noqa: F401

        if prepare:
            prepare(rank)
        if group != NO_GROUP:
            init_group(rank, size, store, **group)
        value = function(rank, size, *args)
        if dist.is_initialized():
            dist.destroy_process_group()
        connection.send((value, None))
    except BaseException:
        connection.send((None, traceback.format_exc()))
    connection.close()


@contextlib.contextmanager
def started_ranks(size: int, function, *args, bound_s: float = BOUND_S, prepare=None, group=None):
    """Starts the ranks. Leaving the block waits for them; then each has .value or .failure."""
    ranks = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for rank in range(size):
                mine, theirs = _context.Pipe(duplex=False)
                store = str(Path(directory) / "store")
                process = _context.Process(
                    target=_rank_main,
                    args=(rank, size, store, bound_s, prepare, group or {}, function, args, theirs),
                )
                process.start()
                theirs.close()
                ranks.append(ForkedRank(process, mine))
            # Not earlier: the first start() waits until the server has imported its modules.
            deadline = time.monotonic() + bound_s + 5
            yield ranks
            for rank in ranks:
                rank.finish(deadline)
        finally:
            for rank in ranks:
                if rank.process.is_alive():
                    rank.process.kill()
                    rank.process.join()


def run_ranks(size: int, function, *args, **options) -> list:
    """Options are those of started_ranks()."""
    with started_ranks(size, function, *args, **options) as ranks:
        pass
    failures = [f"rank {r} {rank.failure}" for r, rank in enumerate(ranks) if rank.failure]
    assert not failures, "\n".join(failures)
    return [rank.value for rank in ranks]


# ---- scripts


def _script_main(script: str, args: tuple[str, ...], outputs: list[str]) -> None:
    """Runs a script and exits as `python -c` does: with atexit handlers and destructors."""
    from support import torch_names  # noqa: F401

    for descriptor, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["-c", *args]
    multiprocessing.set_start_method(None, force=True)  # the default, not the server's
    failed = ctypes.pythonapi.PyRun_SimpleString(script.encode())
    ctypes.pythonapi.Py_Exit(1 if failed else 0)


def run_forked_scripts(
    script: str, arguments: list[tuple[str, ...]], bound_s: float = BOUND_S
) -> list[tuple[int, str, str]]:
    """Runs a script in one process for each tuple of arguments; returns exit codes, stdout, stderr.

    The processes are forked from the server, so torch and torch_ccl are loaded already.
    """
    with tempfile.TemporaryDirectory() as directory:
        outputs = [
            [f"{directory}/{i}.{name}" for name in ("out", "err")] for i in range(len(arguments))
        ]
        processes = [
            _context.Process(target=_script_main, args=(script, args, paths))
            for args, paths in zip(arguments, outputs, strict=True)
        ]
        try:
            for process in processes:
                process.start()
            deadline = time.monotonic() + bound_s
            for process in processes:
                process.join(max(0, deadline - time.monotonic()))
        finally:
            for process in processes:
                process.kill()
                process.join()
        return [
            (process.exitcode, *(Path(path).read_text() for path in paths))
            for process, paths in zip(processes, outputs, strict=True)
        ]


def start_script(script: str, *args: str, **environment: str) -> subprocess.Popen:
    """Starts a new interpreter that runs `script`, for tests of what happens before a fork.

    It imports torch, which takes 2 s of CPU: run_forked_scripts() does where that is not tested.
    """
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", script, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def run_script(script: str, *args: str, bound_s: float = BOUND_S, **environment: str) -> str:
    """Returns the script's stdout; its exit code must be 0."""
    process = start_script(script, *args, **environment)
    try:
        out, err = process.communicate(timeout=bound_s)
    finally:
        process.kill()
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    return out
