"""Shared code of the staging checks: their table, delayed tensors, expected failures.

@check registers a function in CHECKS. It is called on two ranks, with devices standin:0 and
standin:1.
"""

import contextlib
import time

import torch
import torch.distributed as dist

SIZE = 2
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def device_of(rank: int) -> str:
    return f"standin:{rank}"


def delayed(rank: int, elements: int = 1000, delay_ms: float = 20) -> torch.Tensor:
    """A tensor of zeros that holds rank + 1 after the delay."""
    tensor = torch.zeros(elements, device=device_of(rank))
    torch.standin.synchronize(rank)
    torch.standin.set_delay_ms(delay_ms)
    tensor.copy_(torch.full((elements,), rank + 1.0), non_blocking=True)
    torch.standin.set_delay_ms(0.5)
    return tensor


SUM = SIZE * (SIZE + 1) / 2


@contextlib.contextmanager
def fails(*words: str, within_s: float):
    start = time.monotonic()
    try:
        yield
    except dist.DistBackendError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("it did not fail")
    assert time.monotonic() - start < within_s


@contextlib.contextmanager
def refused(*words: str):
    try:
        yield
    except (ValueError, RuntimeError) as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("it was not refused")
