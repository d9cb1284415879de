"""Shared code of the checks of the stand-in accelerator: their table, and helpers.

@check registers a function in CHECKS. It is called in a process of its own, in which the device is
loaded but has not been used.
"""

import torch

BOUND_S = 30
LATE_MS = 300  # long compared with the work of the host, also on a loaded machine

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def late_fill(tensor: torch.Tensor, value: float) -> None:
    """Fills the tensor with a delay of LATE_MS; later operations have no delay."""
    torch.standin.set_delay_ms(LATE_MS)
    tensor.fill_(value)
    torch.standin.set_delay_ms(0)


def settled(tensor: torch.Tensor) -> torch.Tensor:
    torch.standin.synchronize(tensor.device)
    return tensor


def holds(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def read_by(stream: torch.Stream, tensor: torch.Tensor) -> torch.Tensor:
    with stream:
        return tensor.cpu()


def assert_raises(kind: type, text: str, function) -> None:
    try:
        function()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error that says {text!r}")
