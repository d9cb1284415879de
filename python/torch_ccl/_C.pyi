"""The extension (binding/module.cc): the c10d backend, and functions of the process's context."""

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllreduceOptions,
    Backend,
    BroadcastOptions,
    ErrorType,
    Store,
    Work,
)

class ProcessGroupCCL(Backend):
    class Options(Backend.Options):
        def __init__(self, timeout: timedelta = ...) -> None: ...

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta = ...,
        name: str = "world",
        backend: str = "ccl",
    ) -> None: ...
    @property
    def options(self) -> Any: ...
    def allreduce_compressed(
        self, tensors: list[torch.Tensor], options: AllreduceOptions, wire_dtype: str
    ) -> Work: ...
    def allreduce(self, tensors: list[torch.Tensor], opts: AllreduceOptions = ...) -> Work: ...
    def shrink(  # from torch 2.10
        self,
        ranks_to_exclude: list[int],
        shrink_flags: int = 0,
        opts_override: Backend.Options | None = None,
    ) -> Backend: ...
    def broadcast(self, tensors: list[torch.Tensor], opts: BroadcastOptions = ...) -> Work: ...
    def get_error(self) -> ErrorType: ...
    def _set_default_timeout(self, timeout: timedelta) -> None: ...
    def _set_device_backend(self, device: str, backend: Backend) -> None: ...

class InvalidArgument(ValueError, RuntimeError): ...

def create(group: Any, options: ProcessGroupCCL.Options | None, name: str) -> ProcessGroupCCL: ...
def empty(size: list[int], dtype: torch.dtype) -> torch.Tensor: ...
def operation_count() -> int: ...
def _close(wait_for_operations: timedelta) -> None: ...
