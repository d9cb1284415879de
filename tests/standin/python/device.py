"""The module torch.standin: the functions that PyTorch requires, and switches for tests."""

import contextlib
import sys

import torch
from standin import _C


def register() -> None:
    """PyTorch's entry point, called at the end of `import torch`; once is enough."""
    if hasattr(torch, "standin"):
        return
    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)


# ---- switches


def set_delay_ms(delay_ms: float) -> None:
    """The duration of each copy that is enqueued from now on."""
    _C.set_delay_ms(delay_ms)


def ignore_waits(on: bool) -> None:
    """Streams no longer wait for events."""
    _C.ignore_waits(on)


def ignore_host_waits(on: bool) -> None:
    """The host sees every event and stream as complete; synchronize() of a device still waits."""
    _C.ignore_host_waits(on)


def refuse_pinned(on: bool) -> None:
    """No host memory can be pinned, so copies to the host block it."""
    _C.refuse_pinned(on)


def simultaneous_copies() -> int:
    """The number of copies that started during another copy."""
    return _C.simultaneous_copies()


def torn_copies() -> int:
    """The number of copies whose source changed during the copy."""
    return _C.torn_copies()


# ---- devices


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return _C.is_initialized()


def _is_in_bad_fork() -> bool:
    return _C.forked_after_use()


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device) -> None:
    torch.accelerator.set_device_index(device)


def device(device) -> contextlib.AbstractContextManager:
    return torch.accelerator.device_index(torch._utils._get_device_index(device, optional=True))


def synchronize(device=None) -> None:
    torch.accelerator.synchronize(device)


# ---- streams

Stream = torch.Stream
Event = torch.Event


def current_stream(device=None) -> torch.Stream:
    return torch.accelerator.current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager:
    return stream or contextlib.nullcontext()


# ---- random numbers: the device has its own state; the host computes them

_generator = torch.Generator()


def manual_seed(seed: int) -> None:
    _generator.manual_seed(seed)


manual_seed_all = manual_seed


def get_rng_state(device="standin") -> torch.Tensor:
    return _generator.get_state()


def set_rng_state(state: torch.Tensor, device="standin") -> None:
    _generator.set_state(state)


# ---- mixed precision


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]
