"""Tensors of torch_ccl.empty(): collectives use them in place, without a copy."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.ranks import run_ranks, start_script

LARGE = 300_001  # elements: more than the least size, and no whole number of pages


def in_shared_memory(tensor: torch.Tensor) -> bool:
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return "memfd:tccl" in line
    raise AssertionError("not mapped")


def test_same_arguments_as_torch_empty():
    for size in ((), (0,), (3,), (2, 3), (LARGE,)):
        x = torch_ccl.empty(*size, dtype=torch.bfloat16)
        assert x.shape == torch.Size(size) and x.dtype == torch.bfloat16 and x.is_contiguous()
    assert torch_ccl.empty((2, 3)).shape == (2, 3)
    assert torch_ccl.empty(torch.Size([4])).dtype == torch.get_default_dtype()
    assert torch_ccl.empty(3, requires_grad=True).requires_grad
    x = torch_ccl.empty(LARGE)
    assert in_shared_memory(x) and x.data_ptr() % 4096 == 0
    x.fill_(2)
    assert torch.equal(x * 2, torch.full((LARGE,), 4.0))


@pytest.mark.parametrize(
    ("size", "message"),
    [((-1,), "ccl: a dimension cannot have -1 elements"), ((2**40, 2**40), "ccl: a tensor")],
)
def test_invalid_sizes_are_refused(size, message):
    with pytest.raises(RuntimeError, match=message):
        torch_ccl.empty(*size)


def check_collectives(rank: int, size: int, everywhere: bool) -> None:
    """Some cases have ordinary tensors on some ranks."""

    def tensor(count: int, value: float) -> torch.Tensor:
        empty = torch_ccl.empty if everywhere or rank % 2 == 0 else torch.empty
        return empty(count).fill_(value)

    total = size * (size + 1) / 2
    for _ in range(3):
        x = tensor(LARGE, rank + 1)
        dist.all_reduce(x)
        assert bool((x == total).all())
        x = tensor(LARGE, rank + 1)
        view = x[1:-2]  # begins and ends within pages
        dist.all_reduce(view, async_op=True).wait()
        assert bool((view == total).all()) and x[0] == x[-1] == x[-2] == rank + 1

        x, y = tensor(LARGE, rank), tensor(LARGE * size, -1)
        dist.all_gather_into_tensor(y, x)
        assert bool((y.view(size, -1) == torch.arange(size)[:, None]).all())
        x.fill_(-1)  # the memory was reused
        dist.reduce_scatter_tensor(x, y)
        assert bool((x == rank * size).all())
        dist.broadcast(y[:LARGE], size - 1)
        assert bool((y[:LARGE] == 0).all())
        y.fill_(rank)
        z = tensor(LARGE * size, -1)
        dist.all_to_all_single(z, y)
        assert bool((z.view(size, -1) == torch.arange(size)[:, None]).all())
        dist.reduce(z, 0)
        if rank == 0:
            assert bool((z.view(size, -1) == size * torch.arange(size)[:, None]).all())


@pytest.mark.parametrize("everywhere", [True, False], ids=["all ranks", "some ranks"])
@pytest.mark.parametrize("size", [2, 3])
def test_collectives(size, everywhere):
    run_ranks(size, check_collectives, everywhere)


def check_reuse(rank: int, size: int) -> None:
    def shared_kib() -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))

    def use() -> None:
        x = torch_ccl.empty(4 << 20).fill_(1)
        dist.all_reduce(x)
        assert x[0] == x[-1] == size

    for _ in range(5):
        use()
    before = shared_kib()
    for _ in range(50):
        use()
    assert shared_kib() <= before + 1024


def test_freed_memory_is_reused():
    run_ranks(2, check_reuse)


def check_no_room(rank: int, size: int) -> None:
    tensors = [torch_ccl.empty(64 << 20) for _ in range(3)]
    assert not any(in_shared_memory(x) for x in tensors[1:])
    dist.all_reduce(tensors[2].fill_(rank))
    assert tensors[2][-1] == size * (size - 1) / 2


def set_least_room(_rank: int) -> None:
    os.environ["CCL_SHARED_BYTES"] = "256M"


def test_ordinary_tensor_when_memory_is_exhausted():
    script = "import torch_ccl; tensors = [torch_ccl.empty(64 << 20) for _ in range(3)]"
    process = start_script(script, CCL_SHARED_BYTES="256M")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors.count("CCL_SHARED_BYTES") == 1, errors
    run_ranks(2, check_no_room, prepare=set_least_room)


def check_allocation_by_backend(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    x = backend.allocate_tensor(LARGE, dtype=torch.float64, device=torch.device("cpu"))
    assert x.shape == (LARGE,) and x.dtype == torch.float64 and in_shared_memory(x)


def test_the_backend_allocates():
    run_ranks(2, check_allocation_by_backend)


# ---- training, with layers large enough for zero-copy gradients


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(300, 600), torch.nn.ReLU(), torch.nn.Linear(600, 300)
    ).double()


def loss_of(net: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return net(torch.randn(4, 300, generator=generator, dtype=torch.float64)).square().mean()


def trained(net: torch.nn.Module, ranks: list[int]) -> torch.nn.Module:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        (sum(loss_of(net, rank, step) for rank in ranks) / len(ranks)).backward()
        optimizer.step()
    return net


def assert_same_weights(found: dict, expected: torch.nn.Module) -> None:
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-11)


def check_ddp(rank: int, size: int) -> None:
    net = network()
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    trained(model, [rank])
    assert all(in_shared_memory(p.grad) for p in net.parameters())
    assert_same_weights(net.state_dict(), trained(network(), list(range(size))))


def allow_it(_rank: int) -> None:
    os.environ["DDP_DISABLE_COMM_MEM"] = "0"  # torch's own switch


def test_ddp_buckets():
    run_ranks(2, check_ddp, prepare=allow_it)


def check_fsdp(rank: int, size: int) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    net = fully_shard(network())
    net.set_allocate_memory_from_process_group_for_comm(True)
    trained(net, [rank])
    state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        assert_same_weights(state, trained(network(), list(range(size))))
    comm = net._get_fsdp_state()._fsdp_param_groups[0]._all_gather_comm
    buffer = comm.allocate((LARGE,), dtype=torch.float32, device=torch.device("cpu"))
    assert in_shared_memory(buffer) and backend.name() == "ccl"


def test_fsdp2_buffers():
    run_ranks(2, check_fsdp)
