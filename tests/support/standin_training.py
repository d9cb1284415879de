"""Checks of the stand-in accelerator: training, with optimizers and with DDP."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.standin_helpers import assert_raises, check


def models(device: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, copy.deepcopy(model).to(device)


def train(model: nn.Module, optimizer, device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        inputs, labels = (torch.randn(6, n, generator=generator).to(device) for n in (4, 3))
        optimizer.zero_grad()
        outputs = model(inputs)
        nn.MSELoss()(outputs, labels.to(outputs.device)).backward()
        optimizer.step()


def assert_same_parameters(expected: nn.Module, got: nn.Module) -> None:
    for a, b in zip(expected.parameters(), got.parameters(), strict=True):
        assert torch.equal(a, b.cpu())


@check
def models_train_as_on_the_cpu():
    for optimizer, options in (
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"foreach": False}),
    ):
        expected, got = models("standin:1")
        train(expected, optimizer(expected.parameters(), **options), "cpu")
        train(got, optimizer(got.parameters(), **options), "standin:1")
        assert_same_parameters(expected, got)
    assert torch.standin.torn_copies() == 0


@check
def models_train_on_another_stream():
    expected, got = models("standin:1")
    train(expected, torch.optim.SGD(expected.parameters(), 0.1), "cpu")
    side = torch.Stream("standin:1")
    side.wait_stream(torch.standin.current_stream("standin:1"))
    with side:
        train(got, torch.optim.SGD(got.parameters(), 0.1), "standin:1")
    torch.standin.current_stream("standin:1").wait_stream(side)
    assert_same_parameters(expected, got)


def reduce_on_another_stream(
    side: torch.Stream, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Acts like a collective of one rank: reads and writes after the current stream."""
    future = torch.futures.Future(devices=[side.device])
    side.wait_stream(torch.standin.current_stream(side.device))
    with side:
        future.set_result(bucket.buffer().clone())
    return future


def train_with_ddp(ignore_waits: bool) -> tuple[nn.Module, nn.Module]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("cpu:fake,standin:fake", store=FakeStore(), rank=0, world_size=1)
    expected, got = models("standin:1")
    ddp = DistributedDataParallel(got, device_ids=["standin:1"])
    ddp.register_comm_hook(torch.Stream("standin:1"), reduce_on_another_stream)
    train(expected, torch.optim.SGD(expected.parameters(), 0.1), "cpu")
    torch.standin.ignore_waits(ignore_waits)
    train(ddp, torch.optim.SGD(ddp.parameters(), 0.1), "cpu")  # DDP moves the inputs
    dist.destroy_process_group()
    return expected, got


@check
def ddp_trains_as_on_the_cpu():
    assert_same_parameters(*train_with_ddp(ignore_waits=False))
    assert torch.standin.torn_copies() == 0


@check
def ddp_without_waits_is_wrong():
    torch.standin.set_delay_ms(20)
    pair = train_with_ddp(ignore_waits=True)
    assert_raises(AssertionError, "", lambda: assert_same_parameters(*pair))
