"""Checks that ccl executed a call, whatever backend name the program used."""

import contextlib

import torch
import torch.distributed as dist
import torch_ccl

CPU = torch.device("cpu")


def is_ours(group: dist.ProcessGroup) -> bool:
    return isinstance(group._get_backend(CPU), torch_ccl.ProcessGroupCCL)


@contextlib.contextmanager
def served_by_ccl():
    before = torch_ccl.operation_count()
    yield
    assert torch_ccl.operation_count() > before, "ccl has started no operation"


def check_sum(group: dist.ProcessGroup | None, size: int) -> None:
    tensor = torch.ones(5)
    with served_by_ccl():
        dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size] * 5
