"""Checks of the stand-in accelerator: pinned host memory, device memory, several devices, fork."""

import multiprocessing

import torch

from support.standin_helpers import (
    BOUND_S,
    LATE_MS,
    assert_raises,
    check,
    holds,
    late_fill,
    settled,
)

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
    """Copies a tensor on another stream; the memory of the source is freed during the copy."""
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
    assert_raises(RuntimeError, "no device 4", lambda: torch.zeros(1, device="standin:4"))


@check
def it_is_the_accelerator():
    assert torch.accelerator.current_accelerator() == torch.device("standin")
    assert torch.accelerator.device_count() == 4
    assert not torch.standin.is_initialized()
    torch.zeros(1, device="standin")
    assert torch.standin.is_initialized()


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
