"""A stand-in accelerator for tests: device "standin", with streams that run behind the host.

PyTorch loads it at `import torch`, and then it is torch.standin too. Its memory is the host's, its
results are the CPU's, but they are late: a program that does not wait where it must gets wrong
numbers. set_delay_ms() says how late; ignore_waits() and ignore_host_waits() take the waits away
from a program that has them, to show that they matter.

STANDIN_DEVICES is the number of devices (4), STANDIN_DELAY_MS the delay at the start (2).
"""

import torch  # noqa: F401  (first: it loads standin.device, which must not be half loaded by then)
from standin.device import (
    ignore_host_waits,
    ignore_waits,
    refuse_pinned,
    register,
    set_delay_ms,
    simultaneous_copies,
    torn_copies,
)

register()

__all__ = [
    "ignore_host_waits",
    "ignore_waits",
    "refuse_pinned",
    "set_delay_ms",
    "simultaneous_copies",
    "torn_copies",
]
