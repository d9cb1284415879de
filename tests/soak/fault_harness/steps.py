"""The Python side of steps.cc: arms a fault at the k-th step of this process.

    preload(library)                       before the processes are started
    steps = Steps(path)                    in the rank
    steps.arm(Action.RAISE, signal.SIGKILL, 17)

A step is a system call of a library or a store to this process's shared memory: see steps.cc.
"""

import ctypes
import mmap
import os
from enum import IntEnum
from multiprocessing import forkserver
from pathlib import Path


class Action(IntEnum):
    RAISE = 0  # a signal to this process
    EXIT = 1
    LIMIT = 2  # a resource, to zero
    KILL = 3  # another process
    WRITE = 4  # a byte to a file descriptor


class Control(ctypes.Structure):
    _fields_ = [
        ("steps_left", ctypes.c_int64),
        ("fault_time_ns", ctypes.c_int64),
        ("action", ctypes.c_int32),
        ("argument", ctypes.c_int32),
        ("headers_only", ctypes.c_int32),
        ("pause_us", ctypes.c_int32),
    ]


def preload(library: Path) -> None:
    """Ranks are forked from the fork server: it starts here, with the library."""
    assert library.exists(), f"{library} is missing: make library"
    os.environ["LD_PRELOAD"] = str(library)
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["LD_PRELOAD"]


class Steps:
    """The control block is in a file, so that the fault's time survives the process."""

    def __init__(self, path: Path):
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(Control))
        self.control = Control.from_buffer(self._memory)

    @staticmethod
    def create(path: Path) -> "Steps":
        path.write_bytes(bytes(ctypes.sizeof(Control)))
        return Steps(path)

    @property
    def fault_time(self) -> float | None:
        """By time.monotonic(); None before the fault."""
        return self.control.fault_time_ns / 1e9 or None

    def arm(self, action: Action, argument: int, step: int, *, headers_only: bool) -> None:
        self.control.action, self.control.argument = action, argument
        self.control.headers_only, self.control.pause_us = headers_only, 2000
        _function("fault_arm")(ctypes.byref(self.control), ctypes.c_int64(step))

    def inject_unless_done(self) -> None:
        """At once, if the calls had fewer steps than drawn."""
        _function("fault_inject_unless_done")()

    @staticmethod
    def disarm() -> None:
        _function("fault_disarm")()


def _function(name: str):
    return getattr(ctypes.CDLL(None), name)
