"""Work objects of asynchronous operations."""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks


def check_future(rank: int, size: int) -> None:
    total = size * (size + 1) / 2
    x = torch.full((8, 8), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    assert doubled.wait().eq(2 * total).all()
    assert future.done() and future.value()[0] is x
    work.wait()
    assert work.is_completed() and work.is_success() and work.result()[0] is x

    # get_future() after completion, of an operation whose result is copied back
    x = torch.full((8, 8), rank + 1.0)
    work = dist.all_reduce(x.t()[2:5], async_op=True)
    seen = []
    done = work.get_future().then(lambda f: seen.append(x[0, 2:5].tolist()))
    done.wait()
    assert seen == [[total] * 3]
    assert work.get_future().wait()[0].eq(total).all()

    # outputs of a gather, and none of a barrier
    outputs = [torch.empty(3) for _ in range(size)]
    work = dist.all_gather(outputs, torch.full((3,), float(rank)), async_op=True)
    assert [t[0].item() for t in work.get_future().wait()] == list(range(size))
    assert dist.barrier(async_op=True).get_future().wait() == []

    # the pieces of a synchronous call
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    work = backend.allreduce([torch.ones(3)])
    work.wait()
    assert work.get_future().wait()[0].eq(size).all()


def test_future():
    run_ranks(2, check_future)


def check_collective_in_callback(rank: int, size: int) -> None:
    """A callback starts the next collective; its own operation is complete by then."""
    x, y = torch.ones(1000), torch.ones(10)
    work = dist.all_reduce(x, async_op=True)
    completed = []

    def next_one(future):
        completed.append(work.is_completed())
        work.wait()
        dist.all_reduce(y)
        return future.value()[0] + y[0]

    result = work.get_future().then(next_one)
    work.wait()
    assert result.wait().eq(2 * size).all()
    assert completed == [True]


def test_collective_in_callback():
    run_ranks(2, check_collective_in_callback)


def check_order(rank: int, size: int) -> None:
    """Many asynchronous operations precede a synchronous one; only the Works hold the tensors."""
    works = [dist.all_reduce(torch.full((50,), float(i)), async_op=True) for i in range(40)]
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.eq(size).all()
    for i, work in enumerate(works):
        work.wait()
        assert work.result()[0].eq(i * size).all()


def test_order():
    run_ranks(3, check_order)


def check_wait_timeout(rank: int, size: int) -> None:
    """A wait that times out does not affect the operation."""
    x = torch.ones(4)
    if rank == 1:
        time.sleep(1.5)
        dist.all_reduce(x)
    else:
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed()
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError):
            work.wait(timedelta(seconds=0.3))
        assert time.monotonic() - start < 1.2
        work.wait()
    assert x.eq(size).all()


@pytest.mark.serial  # measures time
def test_wait_timeout():
    run_ranks(2, check_wait_timeout)


def becomes_true(condition) -> bool:
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def check_without_wait(rank: int, size: int) -> None:
    """Small operations, which no thread runs until somebody asks."""
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    assert becomes_true(work.is_completed)
    assert work.is_success() and x.eq(size).all()

    x = torch.ones(2)
    dist.all_reduce(x, async_op=True)  # the Work is dropped
    assert becomes_true(lambda: x.eq(size).all())

    x, y = torch.ones(2), torch.ones(2)
    works = [dist.all_reduce(t, async_op=True) for t in (x, y)]
    dist.group.WORLD._wait_for_pending_works()
    assert x.eq(size).all() and y.eq(size).all()
    assert all(work.is_completed() for work in works)

    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        assert becomes_true(lambda: not work.is_success())
        assert work.exception() is not None


def test_without_wait():
    run_ranks(2, check_without_wait)


def check_threads(rank: int, size: int) -> None:
    """Threads run operations concurrently, each in its own group."""
    groups = [dist.new_group(list(range(size))) for _ in range(4)]
    wrong = []

    def use(group):
        for i in range(50):
            x = torch.full((100,), float(i))
            dist.all_reduce(x, group=group)
            if not x.eq(i * size).all():
                wrong.append(i)

    threads = [threading.Thread(target=use, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads():
    run_ranks(2, check_threads)


def check_profiler(rank: int, size: int) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    x = torch.ones(4, 3)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.broadcast(x, src=0)
        dist.all_gather([torch.ones(4, 3) for _ in range(size)], x)
        dist.barrier()
    rows = {row.key: row for row in profile.key_averages()}
    assert rows["ccl:all_reduce"].count == 2
    assert {"ccl:broadcast", "ccl:all_gather", "ccl:barrier"} <= rows.keys()
    shapes = [e.input_shapes for e in profile.events() if e.name == "ccl:all_reduce"]
    assert shapes == [[[4, 3]], [[4, 3]]]


def test_profiler():
    run_ranks(2, check_profiler)
