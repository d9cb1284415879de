"""Checks of the stand-in accelerator: streams, events and futures, with and without waits."""

import contextlib
import threading

import torch

from support.standin_helpers import (
    LATE_MS,
    assert_raises,
    check,
    holds,
    late_fill,
    read_by,
    settled,
)

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
    """The reader starts too early; it is slower than the writer."""
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
    assert_raises(RuntimeError, "must be completed", lambda: begin.elapsed_time(end))
    end.synchronize()
    assert begin.elapsed_time(end) >= LATE_MS


# ---- futures


def late_future(*tensors: torch.Tensor) -> torch.futures.Future:
    """Returns a future that is complete for the host at once; other streams write its tensors
    later."""
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
