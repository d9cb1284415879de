"""The faults: one row each."""

import resource
import signal
from dataclasses import dataclass
from enum import Enum

from fault_harness.steps import Action


class Effect(Enum):
    """What the other ranks must see."""

    LOST = "an error that names the rank"
    ABORTED = "the error of abort(), which names the rank"
    STALLED = "an error at the timeout that names the rank"
    UNREACHABLE = "an error that names ranks of the other hosts"
    PERHAPS = "right results, or an error that names the rank"
    NO_STORE = "right results, or while a group is made an error about the store"
    NONE = "right results"


@dataclass(frozen=True)
class Fault:
    action: Action
    argument: int
    effect: Effect
    survives: bool  # the rank goes on, and is in the next group
    stopped_s: float = 0  # the judge lets the rank continue after this time
    cut_s: float = 0  # the judge joins the cable after this time
    over_hosts: bool = False  # needs several hosts
    needs_group: bool = False  # cannot happen while the first group is made


#: Of groups; errors at the timeout are tested with the short one.
TIMEOUT_S, SHORT_TIMEOUT_S = 10.0, 2.0
LIVENESS_TIMEOUT_S = 2  # between hosts
#: A handler of this signal raises an exception: how scripts end on their own.
SCRIPT_SIGNAL = signal.SIGUSR1

_RAISE, _LIMIT = Action.RAISE, Action.LIMIT
FAULTS = {
    "SIGKILL": Fault(_RAISE, signal.SIGKILL, Effect.LOST, survives=False),
    "SIGSEGV": Fault(_RAISE, signal.SIGSEGV, Effect.LOST, survives=False),
    "_exit": Fault(Action.EXIT, 3, Effect.LOST, survives=False),
    "sys.exit": Fault(_RAISE, SCRIPT_SIGNAL, Effect.LOST, survives=False),
    "exception": Fault(_RAISE, SCRIPT_SIGNAL, Effect.LOST, survives=False),
    "abort": Fault(Action.WRITE, 0, Effect.ABORTED, survives=True, needs_group=True),
    "stop": Fault(_RAISE, signal.SIGSTOP, Effect.NONE, survives=True, stopped_s=0.3),
    "long stop": Fault(
        _RAISE, signal.SIGSTOP, Effect.STALLED, survives=True, stopped_s=SHORT_TIMEOUT_S + 1.5
    ),
    "no descriptors": Fault(_LIMIT, resource.RLIMIT_NOFILE, Effect.PERHAPS, survives=True),
    # Python, the loader and the kernel, which extends stacks, end a process without memory.
    "no memory": Fault(_LIMIT, resource.RLIMIT_AS, Effect.PERHAPS, survives=False),
    "no threads": Fault(_LIMIT, resource.RLIMIT_NPROC, Effect.PERHAPS, survives=True),
    "store gone": Fault(Action.KILL, 0, Effect.NO_STORE, survives=True),
    "short cut": Fault(Action.WRITE, 0, Effect.NONE, survives=True, cut_s=0.3, over_hosts=True),
    "long cut": Fault(
        Action.WRITE,
        0,
        Effect.UNREACHABLE,
        survives=True,
        cut_s=LIVENESS_TIMEOUT_S + 2,
        over_hosts=True,
        needs_group=True,
    ),
}
