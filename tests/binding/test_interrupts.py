"""Signals that arrive while a rank waits: handlers that raise, and handlers that call collectives."""

import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks


def on_alarm(handler, delay_s: float = 0.3) -> None:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, delay_s)


def raise_interrupt(*_) -> None:
    raise KeyboardInterrupt


# ---- a handler calls a collective


def check_same_group_in_handler(rank: int, size: int, asynchronous: bool) -> None:
    """The interrupted operation continues; the call in the handler is an error at once."""
    other = dist.new_group()
    outcomes = []

    def handler(*_):
        try:
            work = dist.all_reduce(torch.ones(1), async_op=asynchronous)
            if asynchronous:
                work.wait()
        except dist.DistBackendError as error:
            outcomes.append(str(error))
        y = torch.ones(1)
        dist.all_reduce(y, group=other)
        outcomes.append(y.item())

    x = torch.ones(3)
    if rank == 0:
        on_alarm(handler)
        dist.all_reduce(x)
        [refused, sum_of_other_group] = outcomes
        assert "was called in a signal handler" in refused and "same group" in refused
        assert sum_of_other_group == size
    else:
        time.sleep(0.8)
        dist.all_reduce(torch.ones(1), group=other)
        dist.all_reduce(x)
    assert x.eq(size).all()
    if asynchronous:  # the refused wait() belongs to an operation that is still queued
        if rank != 0:
            dist.all_reduce(torch.ones(1))
    dist.all_reduce(x)
    assert x.eq(size * size).all()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["call", "wait"])
def test_same_group_in_handler(asynchronous):
    run_ranks(2, check_same_group_in_handler, asynchronous, bound_s=30)


# ---- a handler raises


def check_work_after_interrupt(rank: int, size: int) -> None:
    if rank == 1:
        time.sleep(1.5)
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    on_alarm(raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    try:  # the wait was interrupted, or the operation, if this thread had run it
        work.wait(timedelta(seconds=0.1))
    except dist.DistBackendError as error:
        assert "interrupted" in str(error) or "timed out" in str(error)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.abort()
    for _ in range(3):
        with pytest.raises(dist.DistBackendError):
            work.wait()
        assert not work.is_success()
        with pytest.raises(dist.DistBackendError):
            work.get_future().wait()
    assert work.exception() is not None


def test_work_after_interrupt():
    run_ranks(2, check_work_after_interrupt, bound_s=30)


def check_interrupted_by_an_earlier_operation(rank: int, size: int) -> None:
    """The thread in wait() runs the earlier operation first; the interrupt reaches that wait()."""
    if rank == 1:
        time.sleep(1.5)
        return
    earlier = dist.all_reduce(torch.ones(3), async_op=True)
    later = dist.all_reduce(torch.ones(3), async_op=True)
    on_alarm(raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        later.wait()
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    for work in (earlier, later):
        with pytest.raises(dist.DistBackendError):
            work.wait()


def test_interrupted_by_an_earlier_operation():
    run_ranks(2, check_interrupted_by_an_earlier_operation, bound_s=30)


def check_wait_with_future(rank: int, size: int) -> None:
    """A callback that does not return delays the Future, but not wait(timeout)."""
    if rank == 1:
        time.sleep(2.5)
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.get_future()
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="timed out"):
        work.wait(timedelta(seconds=0.3))
    on_alarm(raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert time.monotonic() - start < 2


def test_wait_with_future():
    run_ranks(2, check_wait_with_future, bound_s=30)


def check_interrupted_destroy(rank: int, size: int) -> None:
    """The peers learn of it, too."""
    start = time.monotonic()
    if rank == 1:
        time.sleep(1.5)
        with pytest.raises(dist.DistBackendError, match="rank 0 .*interrupted"):
            dist.all_reduce(torch.ones(3))
        return
    dist.all_reduce(torch.ones(3), async_op=True)
    on_alarm(raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        dist.destroy_process_group()
    assert time.monotonic() - start < 1.4


def test_interrupted_destroy():
    run_ranks(2, check_interrupted_destroy, bound_s=30)
