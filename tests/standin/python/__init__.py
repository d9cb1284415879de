"""The stand-in accelerator of the tests: device "standin", with asynchronous streams.

PyTorch loads it at `import torch`, as torch.standin. It computes on the CPU in host memory, but
with a delay: a program without the necessary waits reads wrong values. set_delay_ms() sets the
delay; ignore_waits() and ignore_host_waits() disable waits, to show that a test needs them.

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
