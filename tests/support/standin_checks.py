"""Checks of the stand-in device, for an interpreter in which it is loaded.

As a program it runs every check in a forked process and prints one line of JSON per check: its
name, and its failure or null. Forking also shows that loading the device starts no thread.
"""

import contextlib
import copy
import faulthandler
import json
import multiprocessing
import sys
import threading
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


def with_error(kind: type, text: str, function) -> None:
    try:
        function()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error that says {text!r}")


# ---- numbers


@check
def arithmetic_is_right():
    a, b = torch.randn(5, 4), torch.randn(4, 3)
    x, y = a.to("standin"), b.to("standin")
    assert x.device == torch.device("standin:0") and x.is_standin
    assert torch.equal((x @ y + 1).relu().cpu(), (a @ b + 1).relu())
    assert torch.equal(torch.cat([x, x * 2], 1).sum(0).cpu(), torch.cat([a, a * 2], 1).sum(0))
    assert (x > 0).sum().item() == (a > 0).sum().item()
    assert torch.arange(6, device="standin").tolist() == [0, 1, 2, 3, 4, 5]
    assert "device='standin:0'" in repr(x)


@check
def views_share_memory():
    base = torch.arange(24.0).reshape(4, 6)
    x = base.to("standin")
    x.t()[1:3, ::2] += 100
    x[2].view(2, 3)[1] = 7
    x.unfold(1, 2, 2)[0, 0].neg_()
    base.t()[1:3, ::2] += 100
    base[2].view(2, 3)[1] = 7
    base.unfold(1, 2, 2)[0, 0].neg_()
    assert torch.equal(x.cpu(), base)


@check
def copies_convert_stride_and_broadcast():
    a = torch.randn(6, 4)
    for source in (a, a.t(), a[::2, 1:], a.to(torch.bfloat16), a[:0], a[0, 0]):
        assert torch.equal(source.to("standin").cpu(), source)
    x = torch.zeros(4, 6, dtype=torch.float64, device="standin")
    x.t()[:, ::2].copy_(a[:, :2])
    x[0].copy_(torch.tensor([1, 2, 3, 4, 5, 6]))
    x[1].copy_(torch.tensor(9.0))
    expected = torch.zeros(4, 6, dtype=torch.float64)
    expected.t()[:, ::2].copy_(a[:, :2])
    expected[0].copy_(torch.tensor([1, 2, 3, 4, 5, 6]))
    expected[1].copy_(torch.tensor(9.0))
    assert torch.equal(x.cpu(), expected)
    onto_itself = torch.zeros(1, device="standin").expand(3)
    with_error(RuntimeError, "single memory location", lambda: onto_itself.copy_(torch.ones(3)))


@check
def complex_numbers():
    c = torch.randn(5, dtype=torch.complex64)
    x = c.to("standin")
    assert torch.equal(x.conj().cpu(), c.conj())
    assert torch.equal(torch.view_as_real(x).cpu(), torch.view_as_real(c))
    assert torch.equal(x.conj().imag.cpu(), c.conj().imag)
    x.copy_(c.conj())
    assert torch.equal(x.cpu(), c.conj())


@check
def storages_grow_and_are_shared():
    x = torch.arange(10.0).to("standin")
    x.resize_(20)
    assert torch.equal(x[:10].cpu(), torch.arange(10.0))
    y = torch.empty(0, device="standin").set_(x.untyped_storage(), 2, (3,), (2,))
    y += 1
    assert x[:8].tolist() == [0, 1, 3, 3, 5, 5, 7, 7]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    assert torch.equal(copy.deepcopy(y[:0]).cpu(), torch.empty(0))


@check
def random_numbers_repeat():
    torch.manual_seed(3)
    first = torch.randn(4, device="standin:1").cpu()
    state = torch.standin.get_rng_state()
    second = torch.rand(4, device="standin").cpu()
    torch.manual_seed(3)
    assert torch.equal(torch.randn(4, device="standin:2").cpu(), first)
    torch.standin.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="standin").cpu(), second)


# ---- streams and events


@check
def another_stream_sees_old_contents_without_a_wait():
    x = settled(torch.zeros(1000, device="standin"))
    late_fill(x, 7)
    assert holds(read_by(torch.Stream("standin"), x), 0)
    assert holds(x.cpu(), 7), "its own stream is in order"


@check
def another_stream_waits_for_an_event():
    x = settled(torch.zeros(1000, device="standin"))
    late_fill(x, 7)
    event = torch.standin.current_stream().record_event()
    side = torch.Stream("standin")
    side.wait_event(event)
    assert not event.query()
    assert holds(read_by(side, x), 7)
    assert event.query()


@check
def ignored_waits_give_wrong_numbers():
    x = settled(torch.zeros(1000, device="standin"))
    torch.standin.ignore_waits(True)
    late_fill(x, 7)
    side = torch.Stream("standin")
    side.wait_stream(torch.standin.current_stream())
    assert holds(read_by(side, x), 0)
    torch.standin.ignore_waits(False)
    side.wait_stream(torch.standin.current_stream())
    assert holds(read_by(side, x), 7)


@check
def a_source_that_changes_under_way_gives_garbage():
    """Also if the reader is slower than the writer, and starts too early."""
    x = settled(torch.zeros(1000, device="standin"))
    late_fill(x, 7)
    torch.standin.set_delay_ms(3 * LATE_MS)
    with torch.Stream("standin"):
        y = x.clone()
        assert y.cpu().isnan().all()
    assert torch.standin.torn_copies() == 1


@check
def host_waits_for_events_and_streams():
    host = torch.zeros(1000, pin_memory=True)
    x = torch.ones(1000, device="standin")
    torch.standin.set_delay_ms(LATE_MS)
    stream = torch.standin.current_stream()
    for wait in (torch.Event.synchronize, lambda _: stream.synchronize()):
        host.zero_()
        host.copy_(x, non_blocking=True)
        event = stream.record_event()
        torch.standin.ignore_host_waits(True)
        wait(event)
        assert event.query() and holds(host, 0)
        torch.standin.ignore_host_waits(False)
        assert not event.query() and not stream.query()
        wait(event)
        assert event.query() and holds(host, 1)


@check
def an_event_goes_to_another_thread():
    x = settled(torch.zeros(1000, device="standin:1"))
    late_fill(x, 7)
    event = torch.standin.current_stream("standin:1").record_event()
    seen = []

    def read():
        assert torch.standin.current_stream("standin:1").stream_id == 0
        side = torch.Stream("standin:1")
        side.wait_event(event)
        seen.append(read_by(side, x))

    thread = threading.Thread(target=read)
    with torch.Stream("standin:1"):
        thread.start()
        thread.join()
    assert holds(seen[0], 7)


@check
def events_measure_time():
    begin, end = (torch.Event("standin", enable_timing=True) for _ in range(2))
    x = torch.zeros(1, device="standin")
    begin.record()
    late_fill(x, 1)
    end.record()
    with_error(RuntimeError, "must be completed", lambda: begin.elapsed_time(end))
    end.synchronize()
    assert begin.elapsed_time(end) >= LATE_MS


# ---- host memory


@check
def pinned_memory_is_known():
    host = torch.empty(10, pin_memory=True)
    assert host.is_pinned() and host[3:].is_pinned()
    assert host.isnan().all()
    assert not torch.empty(10).is_pinned()
    assert torch.ones(3).pin_memory().is_pinned()
    assert torch.ones(3, device="standin").to("cpu", non_blocking=True).is_pinned()


@check
def a_pinned_source_is_read_late():
    torch.standin.set_delay_ms(LATE_MS)
    host = torch.full((1000,), 5.0, pin_memory=True)
    x = torch.empty(1000, device="standin")
    x.copy_(host, non_blocking=True)
    host.fill_(6)
    assert not holds(x.cpu(), 5)
    x.copy_(host, non_blocking=True)
    torch.standin.current_stream().record_event().synchronize()
    host.fill_(5)
    assert holds(x.cpu(), 6)


@check
def other_sources_may_change_at_once():
    torch.standin.set_delay_ms(LATE_MS)
    x = torch.empty(1000, device="standin")
    for host, non_blocking in (
        (torch.empty(1000, pin_memory=True), False),
        (torch.empty(1000), False),
        (torch.empty(1000), True),
    ):
        host.fill_(5)
        x.copy_(host, non_blocking=non_blocking)
        host.fill_(6)
        assert holds(x.cpu(), 5)


@check
def a_freed_pinned_source_is_still_read():
    torch.standin.set_delay_ms(LATE_MS)
    host = torch.full((1000,), 5.0, pin_memory=True)
    x = torch.empty(1000, device="standin")
    x.copy_(host, non_blocking=True)
    del host
    assert holds(x.cpu(), 5)


@check
def host_memory_is_written_late():
    torch.standin.set_delay_ms(LATE_MS)
    x = torch.ones(1000, device="standin")
    host = torch.zeros(1000, pin_memory=True)
    host.copy_(x, non_blocking=True)
    assert holds(host, 0)
    torch.standin.synchronize()
    assert holds(host, 1)


@check
def memory_that_is_not_pinned_holds_up_the_host():
    torch.standin.set_delay_ms(LATE_MS)
    x = torch.ones(1000, device="standin")
    host = torch.zeros(1000)
    host.copy_(x, non_blocking=True)
    assert holds(host, 1)


# ---- device memory


def copied_on_another_stream(of: torch.Tensor, record: bool) -> torch.Tensor:
    """The memory of the source is freed during the copy."""
    side = torch.Stream("standin")
    result = settled(torch.zeros_like(of))
    doomed = settled(of.clone())
    torch.standin.set_delay_ms(LATE_MS)
    with side:
        result.copy_(doomed)
    if record:
        doomed.record_stream(side)
    del doomed
    side.synchronize()
    return result.cpu()


@check
def fresh_memory_is_garbage():
    assert torch.empty(10, device="standin").cpu().isnan().all()
    assert holds(torch.empty(10, dtype=torch.int32, device="standin").cpu(), -1)


@check
def memory_is_freed_under_a_stream_that_is_not_recorded():
    assert copied_on_another_stream(torch.ones(9, device="standin"), record=False).isnan().all()


@check
def memory_waits_for_a_recorded_stream():
    assert holds(copied_on_another_stream(torch.ones(9, device="standin"), record=True), 1)


@check
def memory_may_be_freed_behind_its_own_stream():
    torch.standin.set_delay_ms(LATE_MS)
    x = torch.ones(9, device="standin")
    y = x.clone()
    del x
    assert holds(y.cpu(), 1)


# ---- devices


@check
def devices_are_apart_and_copies_order_them():
    assert torch.standin.device_count() == 4
    with torch.standin.device(2):
        assert torch.standin.current_device() == 2
        assert torch.zeros(1, device="standin").device == torch.device("standin:2")
    assert torch.standin.current_device() == 0
    there = settled(torch.zeros(1000, device="standin:3"))
    here = settled(torch.zeros(1000, device="standin:1"))
    late_fill(here, 7)
    there.copy_(here)
    late_fill(here, 8)  # enqueued after the copy
    assert holds(there.cpu(), 7)
    with_error(RuntimeError, "no device 4", lambda: torch.zeros(1, device="standin:4"))


@check
def it_is_the_accelerator():
    assert torch.accelerator.current_accelerator() == torch.device("standin")
    assert torch.accelerator.device_count() == 4
    assert not torch.standin.is_initialized()
    torch.zeros(1, device="standin")
    assert torch.standin.is_initialized()


# ---- futures


def late_future(*tensors: torch.Tensor) -> torch.futures.Future:
    """Complete for the host at once; other streams write its tensors later."""
    devices = [tensor.device for tensor in tensors]
    future = torch.futures.Future(devices=devices)
    with contextlib.ExitStack() as streams:
        for device in devices:
            streams.enter_context(torch.Stream(device))
        for tensor in tensors:
            late_fill(tensor, 7)
        future.set_result(tensors)
    return future


def two_devices() -> list[torch.Tensor]:
    return [settled(torch.zeros(1000, device=f"standin:{index}")) for index in (1, 2)]


@check
def futures_order_streams():
    future = late_future(*two_devices())
    assert future.done()
    assert all(holds(tensor.cpu(), 7) for tensor in future.wait())


@check
def futures_that_do_not_wait_are_seen():
    torch.standin.ignore_waits(True)
    assert all(holds(tensor.cpu(), 0) for tensor in late_future(*two_devices()).wait())


@check
def callbacks_of_futures_run_on_streams_of_the_pool():
    streams = []

    def add(future):
        x, y = future.value()
        streams.extend(torch.standin.current_stream(t.device).stream_id for t in (x, y))
        return x + y.to(x.device)

    assert holds(late_future(*two_devices()).then(add).wait().cpu(), 14)
    assert 0 not in streams


# ---- training


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
    """As a collective with one rank: reads and writes after the current stream."""
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
    with_error(AssertionError, "", lambda: assert_same_parameters(*pair))


# ---- fork


def use_after_fork(connection) -> None:
    try:
        torch.ones(3, device="standin")
        connection.send("no error")
    except RuntimeError as error:
        connection.send(str(error))


@check
def fork_after_use_is_an_error():
    x = torch.ones(3, device="standin")
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=use_after_fork, args=(theirs,))
    process.start()
    assert mine.poll(BOUND_S / 2), "the forked process hangs"
    assert "forked after its parent had used the device" in mine.recv()
    process.join(BOUND_S / 2)
    assert process.exitcode == 0
    assert holds(x.cpu(), 1), "the parent goes on"


# ---- as a program


def run_in_child(function, connection) -> None:
    faulthandler.dump_traceback_later(BOUND_S, exit=True)
    try:
        function()
        connection.send(None)
    except BaseException:
        connection.send(traceback.format_exc())


def failure_of(function) -> str | None:
    mine, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=run_in_child, args=(function, theirs))
    process.start()
    theirs.close()
    try:
        failure = mine.recv()
    except EOFError:
        failure = "ended without a word"
    process.join()
    return failure or (f"exit code {process.exitcode}" if process.exitcode else None)


if __name__ == "__main__":
    for name, function in CHECKS.items():
        if name in sys.argv[1:] or not sys.argv[1:]:
            print(json.dumps({"name": name, "failure": failure_of(function)}), flush=True)
