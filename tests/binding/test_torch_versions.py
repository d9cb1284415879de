"""What torch offers a backend only from some version on, and groups with a backend for each device.

`make test-torch TORCH=2.15.0` runs all checks; an older torch has functions for some of them.
"""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks, run_script

CPU = torch.device("cpu")
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))

# ---- a backend for each device


def register_fake(rank: int) -> None:
    import torch.testing._internal.distributed.fake_pg  # noqa: F401


def check_devices(rank: int, size: int, cpu_class: str) -> None:
    assert type(dist.group.WORLD._get_backend(CPU)).__name__ == cpu_class
    assert dist.group.WORLD.name() in ("gloo", "custom")  # up to 2.13 torch itself sets none
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [size] * 3


def backends_for_devices() -> None:
    """`fake` replaces nccl, which creates no group without a GPU."""
    for backend, cpu_class in (("ccl", "ProcessGroupCCL"), ("gloo", "ProcessGroupGloo")):
        group = {"backend": f"cpu:{backend},cuda:fake"}
        run_ranks(2, check_devices, cpu_class, prepare=register_fake, group=group)


def backend_string_with_nccl() -> None:
    script = """
import torch
from torch.distributed import Backend
from torch.distributed.distributed_c10d import BackendConfig
for name in ("cpu:ccl,cuda:nccl", "cpu:gloo,cuda:nccl"):
    print(BackendConfig(Backend(name)).get_device_backend_map())
"""
    expected = [{"cpu": cpu, "cuda": "nccl"} for cpu in ("ccl", "gloo")]
    assert run_script(script).splitlines() == list(map(str, expected))


# ---- functions


def check_gather_single(rank: int, size: int) -> None:
    part = torch.full((2, 3), float(rank))
    for root in range(size):
        flat = torch.empty(size * 6) if rank == root else None
        dist.gather_single(part, flat, dst=root)
        if flat is not None:
            assert torch.equal(flat, torch.arange(size).repeat_interleave(6).float())
    stacked = torch.empty(size, 2, 3) if rank == 0 else None
    dist.gather_single(part, stacked, dst=0, async_op=True).wait()
    if stacked is not None:
        assert torch.equal(stacked[:, 0, 0], torch.arange(size).float())


def check_set_timeout(rank: int, size: int) -> None:
    dist.set_timeout(timedelta(seconds=7))
    assert dist.group.WORLD._get_backend(CPU).options._timeout == timedelta(seconds=7)


def check_monitored_barrier(rank: int, size: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=300))
    dist.barrier()


def check_sequence_number(rank: int, size: int) -> None:
    before = dist.group.WORLD._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    assert dist.group.WORLD._get_sequence_number_for_group() == before + 3


def check_split_group(rank: int, size: int) -> None:
    part = dist.split_group(split_ranks=[[0, 2], [1]], group_desc="part")
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x, group=part)
    assert x.item() == (2 if rank == 1 else 4)
    assert dist.get_process_group_ranks(part) == ([1] if rank == 1 else [0, 2])
    assert dist.get_backend(part) == "ccl"


def check_bound_device(rank: int, size: int) -> None:
    """torch calls perform_nocolor_split() on the rank outside the new group."""
    group = dist.new_group([0, 2])
    if rank != 1:
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == 2
    dist.barrier()


def without_autoload() -> None:
    """torch calls the entry point torch.distributed.backends for a name that is not registered."""
    script = """
import torch
import torch.distributed as dist
assert "ccl" not in dist.Backend.backend_list
dist.init_process_group("ccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(dist.get_backend(), x.sum().item())
"""
    assert run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split() == ["ccl", "3.0"]


def on_ranks(check, **group):
    return lambda: run_ranks(3, check, group=group)


CHECKS = {  # since which 2.x
    "backends for devices": (8, backends_for_devices),
    "backend string with nccl": (8, backend_string_with_nccl),
    "gather_single": (14, on_ranks(check_gather_single)),
    "set_timeout": (14, on_ranks(check_set_timeout)),
    "monitored_barrier": (14, on_ranks(check_monitored_barrier)),
    "sequence number": (14, on_ranks(check_sequence_number)),
    "without autoload": (14, without_autoload),
    "split_group": (15, on_ranks(check_split_group)),
    "bound device": (15, on_ranks(check_bound_device, device_id=torch.device("cpu:0"))),
}


@pytest.mark.parametrize(
    "name", [name for name, (since, _) in CHECKS.items() if (2, since) <= TORCH]
)
def test_offered_since(name):
    CHECKS[name][1]()
