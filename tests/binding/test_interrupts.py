"""Signals that arrive while a rank waits: handlers that raise, or that call collectives."""

import contextlib
import signal
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.ranks import run_ranks
from torch.distributed.distributed_c10d import _get_default_store


def on_alarm(handler, delay_s: float = 0.3) -> None:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, delay_s)


def raise_interrupt(*_) -> None:
    raise KeyboardInterrupt


def wait_for_the_other_rank() -> None:
    _get_default_store().wait(["done"])


def let_the_other_rank_go_on() -> None:
    _get_default_store().set("done", "")


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
    if asynchronous and rank != 0:  # the refused wait() is of an operation that is still queued
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(x)
    assert x.eq(size * size).all()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["call", "wait"])
def test_same_group_in_handler(asynchronous):
    run_ranks(2, check_same_group_in_handler, asynchronous, bound_s=30)


# ---- a handler raises


def check_work_after_interrupt(rank: int, size: int) -> None:
    if rank == 1:
        wait_for_the_other_rank()
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
    let_the_other_rank_go_on()


def test_work_after_interrupt():
    run_ranks(2, check_work_after_interrupt, bound_s=60)


def check_interrupted_by_an_earlier_operation(rank: int, size: int) -> None:
    """The thread in wait() runs the earlier operation first; the interrupt reaches that wait()."""
    if rank == 1:
        wait_for_the_other_rank()
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
    let_the_other_rank_go_on()


def test_interrupted_by_an_earlier_operation():
    run_ranks(2, check_interrupted_by_an_earlier_operation, bound_s=60)


def check_wait_with_future(rank: int, size: int) -> None:
    """A Future makes wait() neither unbounded nor uninterruptible."""
    if rank == 1:
        wait_for_the_other_rank()
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.get_future()
    with pytest.raises(dist.DistBackendError, match="timed out"):
        work.wait(timedelta(seconds=0.3))
    on_alarm(raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    let_the_other_rank_go_on()


def test_wait_with_future():
    run_ranks(2, check_wait_with_future, bound_s=60)


def check_wait_while_callbacks_run(rank: int, size: int) -> None:
    """The operation is complete, but a callback of its Future blocks."""
    if rank == 1:
        _get_default_store().wait(["callback registered"])
        dist.all_reduce(torch.ones(3))
        wait_for_the_other_rank()
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    runs, may_return = threading.Event(), threading.Event()

    def callback(_):
        runs.set()
        may_return.wait(30)

    work.get_future().then(callback)
    _get_default_store().set("callback registered", "")  # else it may run inside then()
    assert runs.wait(20)  # on a thread of the library: this one has not waited yet
    begin = time.monotonic()
    with contextlib.suppress(dist.DistBackendError):
        work.wait(timedelta(seconds=0.3))
    on_alarm(raise_interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        work.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert time.monotonic() - begin < 10
    may_return.set()
    work.wait()
    let_the_other_rank_go_on()


def test_wait_while_callbacks_run():
    run_ranks(2, check_wait_while_callbacks_run, bound_s=60)


def check_interrupted_release(rank: int, size: int) -> None:
    """Releasing a group waits for its operations. What interrupts that wait ends it, is reported as
    Python reports exceptions of a destructor, and is not raised by a later call."""
    store = dist.PrefixStore("released", _get_default_store())
    group = torch_ccl.ProcessGroupCCL(store, rank, size)
    if rank == 1:
        wait_for_the_other_rank()
    else:
        unraisable = []
        sys.unraisablehook = lambda hook: unraisable.append(hook.exc_type)
        start_allreduce = torch_ccl.ProcessGroupCCL.allreduce.__wrapped__
        start_allreduce(group, [torch.ones(1)], dist.AllreduceOptions())
        on_alarm(raise_interrupt)
        begin = time.monotonic()
        del group
        assert time.monotonic() - begin < 10
        assert unraisable == [KeyboardInterrupt]
        let_the_other_rank_go_on()
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    dist.barrier()


def test_interrupted_release():
    run_ranks(2, check_interrupted_release, bound_s=60)


def check_interrupted_destroy(rank: int, size: int) -> None:
    """The peers learn of it, too."""
    if rank == 1:
        wait_for_the_other_rank()
        with pytest.raises(dist.DistBackendError, match=r"rank 0 .*interrupted"):
            dist.all_reduce(torch.ones(3))
        return
    store = _get_default_store()
    dist.all_reduce(torch.ones(3), async_op=True)
    on_alarm(raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        dist.destroy_process_group()
    store.set("done", "")


def test_interrupted_destroy():
    run_ranks(2, check_interrupted_destroy, bound_s=60)
