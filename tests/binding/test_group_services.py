"""Methods of a group besides collectives: batches, splits, hooks, errors, futures, durations."""

import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks


def backend_of(group=None) -> dist.Backend:
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


# ---- monitored barrier


def check_monitored_barrier(rank: int, size: int) -> None:
    group = dist.group.WORLD
    for _ in range(3):
        group.monitored_barrier(timedelta(seconds=20))
    # ranks 1 and 2 do not join
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            group.monitored_barrier(timedelta(milliseconds=300))
        with pytest.raises(RuntimeError, match="Ranks 1, 2 failed to pass monitoredBarrier"):
            group.monitored_barrier(timedelta(milliseconds=300), wait_all_ranks=True)
    if rank == 3:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"Rank 3 successfully .* from rank 0"):
                group.monitored_barrier(timedelta(seconds=20))
    # the group has not failed
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size
    other = dist.new_group()
    other.monitored_barrier(timedelta(seconds=20))


def test_monitored_barrier():
    run_ranks(4, check_monitored_barrier)


def check_life_after_a_failed_barrier(rank: int, size: int) -> None:
    """The missing rank exits; the others still exchange messages."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    if rank == 2:
        time.sleep(1)
        dist.destroy_process_group(group)
    else:
        with pytest.raises(RuntimeError, match="monitoredBarrier"):
            group.monitored_barrier(timedelta(milliseconds=500))
        time.sleep(1)
        x = torch.full((1000,), float(rank))
        if rank == 0:
            dist.send(x, 1, group=group)
        else:
            dist.recv(x, 0, group=group)
            assert x.eq(0).all()
    dist.barrier()


def test_life_after_a_failed_barrier():
    run_ranks(3, check_life_after_a_failed_barrier)


# ---- batches


def check_batch(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    got = [torch.zeros(1000) for _ in range(4)]
    sent = [torch.full((1000,), rank + i / 8) for i in range(4)]
    operations = [dist.P2POp(dist.isend, tensor, right) for tensor in sent]
    operations += [dist.P2POp(dist.irecv, got[i], left) for i in range(4)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for i in range(4):
        assert got[i].eq(left + i / 8).all()
    # the same as one Work
    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    for i in range(4):
        group.send([sent[i] + 1], right, i)
        group.recv([got[i]], left, i)
    work = group._end_coalescing(torch.device("cpu"))
    future = work.get_future()
    work.wait()
    assert work.is_completed() and work.is_success()
    future.wait()
    assert len(work.result()) == 8
    for i in range(4):
        assert got[i].eq(left + i / 8 + 1).all()
    assert work._get_duration() >= 0


def test_batch_of_messages():
    run_ranks(3, check_batch)


def check_coalescing_manager(rank: int, size: int) -> None:
    tensors = [torch.full((n,), rank + 1.0) for n in (1, 0, 70_000)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all(t.eq(size * (size + 1) / 2).all() for t in tensors)
    outputs = [torch.zeros(size * n) for n in (1, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // size,), float(rank)))
    manager.wait()
    for output in outputs:
        assert output.view(size, -1).eq(torch.arange(size).view(-1, 1)).all()
    sums = [torch.zeros(n) for n in (2, 5)]
    with dist._coalescing_manager():
        for total in sums:
            dist.reduce_scatter_tensor(total, torch.ones(size * total.numel()))
    assert all(total.eq(size).all() for total in sums)
    # calls of different kinds, which torch passes on one by one
    group = dist.group.WORLD
    a, b = torch.full((4,), float(rank)), torch.ones(4)
    group._start_coalescing(torch.device("cpu"))
    group.broadcast([a], dist.BroadcastOptions())
    group.allreduce([b], dist.AllreduceOptions())
    work = group._end_coalescing(torch.device("cpu"))
    work.wait()
    assert a.eq(0).all() and b.eq(size).all()


def test_coalescing_manager():
    run_ranks(2, check_coalescing_manager)


def check_abandoned_batch(rank: int, size: int) -> None:
    backend = backend_of()
    options = dist.AllreduceOptions()
    options.asyncOp = False
    peer = 1 - rank
    for wrong in (
        lambda: backend.send([torch.ones(2).to_sparse()], peer, 0),
        lambda: backend.send([torch.ones(2)], 5, 0),
    ):
        backend._start_coalescing()
        with pytest.raises(ValueError):
            wrong()
        # no batch is open: a synchronous call is complete when it returns
        x = torch.ones(3)
        assert backend.allreduce([x], options).is_completed() and x.eq(size).all()
    # an empty batch
    backend._start_coalescing()
    assert backend._end_coalescing().wait()
    # a batch belongs to its thread
    backend._start_coalescing()
    seen = []

    def other_thread():
        y = torch.ones(3)
        seen.append(backend.allreduce([y], options).is_completed())

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    backend._end_coalescing()
    assert seen == [True]


def test_abandoned_batch():
    run_ranks(2, check_abandoned_batch)


# ---- other groups


def check_split(rank: int, size: int) -> None:
    parent = dist.group.WORLD
    part = parent.split_group([0, 2], group_name="evens") if rank % 2 == 0 else None
    if part is not None:
        x = torch.tensor([rank + 1.0])
        part.allreduce([x]).wait()
        assert x.item() == 4 and part.size() == 2 and part.rank() == rank // 2
        with pytest.raises(ValueError, match="group evens"):
            part.allreduce([x.expand(4)])
    dist.barrier()


def test_split_group():
    run_ranks(3, check_split)


def check_dropped_receive(rank: int, size: int) -> None:
    """A receive whose Work is dropped takes no message and does not time out."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    dist.irecv(torch.zeros(3), 1 - rank, group=group)
    with pytest.raises(Exception, match=r"SparseCPU|dense"):
        dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, torch.zeros(3), 1 - rank, group=group),
                dist.P2POp(dist.isend, torch.ones(3).to_sparse(), 1 - rank, group=group),
            ]
        )
    time.sleep(1.5)
    x = torch.full((3,), float(rank))
    work = dist.isend(x, 1 - rank, group=group)
    y = torch.zeros(3)
    dist.recv(y, 1 - rank, group=group)
    work.wait()
    assert y.eq(1 - rank).all()


def test_dropped_receive():
    run_ranks(2, check_dropped_receive)


def check_messages_nobody_waits_for(rank: int, size: int) -> None:
    """Sends more messages than a ring holds, while the receiver runs a collective."""
    if rank == 1:
        for i in range(100):
            dist.send(torch.full((8,), float(i)), 0)
    dist.barrier()
    if rank == 0:
        x = torch.zeros(8)
        for i in range(100):
            dist.recv(x, 1)
            assert x.eq(i).all()


def test_messages_nobody_waits_for():
    run_ranks(2, check_messages_nobody_waits_for)


def check_merge(rank: int, size: int) -> None:
    store = dist.PrefixStore("merge", dist.group.WORLD.get_group_store())
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    merged = halves[rank // 2].merge_remote_group(store, size, group_name="merged")
    x = torch.ones(2)
    merged.allreduce([x]).wait()
    assert x.eq(size).all()
    with pytest.raises(ValueError, match="group merged"):
        merged.allreduce([x[:1].expand(4)])


def test_merge():
    run_ranks(4, check_merge)


# ---- hooks, durations, futures, errors


def check_hook(rank: int, size: int) -> None:
    seen = []
    group = dist.group.WORLD
    assert not group._has_hooks()
    group._register_on_completion_hook(seen.append)
    assert group._has_hooks()
    with pytest.raises(RuntimeError, match="ccl: group world already has a completion hook"):
        group._register_on_completion_hook(print)
    x = torch.ones(5)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    dist.broadcast(x, 0, async_op=True)
    work.wait()
    group._wait_for_pending_works()
    kinds = [info.op_type for info in seen]
    assert len(kinds) == 3 and kinds.count(kinds[0]) == 2, kinds
    numbers = sorted(info.seq for info in seen)
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert all(info.time_finished >= info.time_started for info in seen)
    assert all(info.active_duration >= timedelta(0) for info in seen)


def test_completion_hook():
    run_ranks(2, check_hook)


def check_numbers_of_threads(rank: int, size: int) -> None:
    seen = []
    group = dist.group.WORLD
    group._register_on_completion_hook(seen.append)

    def issue() -> None:
        for i in range(200):
            work = dist.barrier(async_op=True)
            if i % 20 == 0:
                work.wait()

    threads = [threading.Thread(target=issue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    group._wait_for_pending_works()
    numbers = sorted(info.seq for info in seen)
    assert numbers == list(range(numbers[0], numbers[0] + 800))


def test_threads_get_different_sequence_numbers():
    run_ranks(2, check_numbers_of_threads)


def check_duration(rank: int, size: int) -> None:
    dist.group.WORLD._enable_collectives_timing()
    if rank == 1:
        time.sleep(0.3)
    work = dist.barrier(async_op=True)
    if rank == 0:
        with pytest.raises(RuntimeError, match="no duration before"):
            work._get_duration()
    work.wait()
    duration = work._get_duration()
    assert (200 if rank == 0 else 0) <= duration < 10_000


def test_duration():
    run_ranks(2, check_duration)


def check_message_future(rank: int, size: int) -> None:
    peer = 1 - rank
    mine, theirs = torch.full((300_000,), float(rank)), torch.zeros(300_000)
    sent = dist.isend(mine, peer)
    received = dist.irecv(theirs, peer)
    doubled = received.get_future().then(lambda future: future.value()[0] * 2)
    assert doubled.wait().eq(2 * peer).all()
    sent.get_future().wait()
    assert sent.is_completed() and received.is_completed()
    assert received._source_rank() == peer
    with pytest.raises(RuntimeError, match="only a completed receive"):
        sent._source_rank()
    assert int(received.get_future_result().wait()) == 0


def test_futures_of_messages():
    run_ranks(2, check_message_future)


def check_get_error(rank: int, size: int) -> None:
    backend = backend_of()
    assert "SUCCESS" in str(backend.get_error())
    doomed = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        work = dist.barrier(group=doomed, async_op=True)
        result = work.get_future_result()
        with pytest.raises(dist.DistBackendError):
            work.wait()
        assert int(result.wait()) == 1  # TIMEOUT
        assert "TIMEOUT" in str(backend_of(doomed).get_error())
    other = dist.new_group()
    dist.barrier()
    if rank == 1:
        backend_of(other).abort()
    with pytest.raises(dist.DistBackendError, match=r"rank 1 called abort\(\) on group"):
        dist.barrier(group=other)
    assert "COMM_ERROR" in str(backend_of(other).get_error())
    assert "SUCCESS" in str(backend.get_error())
    dist.barrier()


def test_errors_are_known():
    run_ranks(2, check_get_error)


def check_close_in_signal_handler(rank: int, size: int, wait_name: str) -> None:
    """A program may close the group on SIGTERM: the interrupted operation fails, nothing hangs."""
    waits = {
        "collective": lambda: dist.all_reduce(torch.ones(3)),
        "message": lambda: dist.recv(torch.ones(3), 0),
    }
    if rank == 0:
        time.sleep(1.5)
        return
    closed = []

    def handler(*_):
        dist.group.WORLD.shutdown()
        closed.append(True)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(dist.DistBackendError):
        waits[wait_name]()
    assert closed


@pytest.mark.parametrize("wait_name", ["collective", "message"])
def test_close_in_signal_handler(wait_name):
    run_ranks(2, check_close_in_signal_handler, wait_name, bound_s=20)


def check_dropped_receive_in_child(rank: int, size: int) -> None:
    work = dist.irecv(torch.zeros(3), 1 - rank)
    child = os.fork()
    if child == 0:
        del work
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    dist.send(torch.ones(3), 1 - rank)
    work.wait()


def test_dropped_receive_in_child():
    run_ranks(2, check_dropped_receive_in_child)


def check_synchronize_with_callbacks(rank: int, size: int) -> None:
    """synchronize() is called with the GIL held, which the callback needs."""
    x, y, seen = torch.ones(1), torch.ones(1), []
    first = dist.all_reduce(x, async_op=True)
    first.get_future().then(lambda future: seen.append(future.value()[0].item()))
    second = dist.all_reduce(y, async_op=True)
    second.synchronize()
    first.wait()
    assert seen == [size] and y.item() == size


def test_synchronize_with_callbacks():
    run_ranks(2, check_synchronize_with_callbacks, bound_s=20)


# ---- sparse sums


def check_sparse(rank: int, size: int) -> None:
    rows = torch.tensor([[0, rank + 1, rank + 1]])  # one shared with all, one given twice
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        values = torch.ones(3, 2, dtype=dtype)
        x = torch.sparse_coo_tensor(rows, values, (size + 2, 2))
        dist.all_reduce(x)
        expected = torch.zeros(size + 2, 2, dtype=dtype)
        expected[0] = size
        expected[1 : size + 1] = 2
        assert x.to_dense().equal(expected), (dtype, x)
    # nothing at all on one rank
    entries = rank  # 0 entries on rank 0
    x = torch.sparse_coo_tensor(torch.zeros(1, entries).long(), torch.ones(entries), (3,))
    work = dist.group.WORLD.allreduce([x])
    y = torch.ones(1)
    dist.all_reduce(y)  # issued meanwhile; must not run between the steps
    work.wait()
    assert x.to_dense().tolist() == [sum(range(size)), 0, 0] and y.item() == size
    with pytest.raises(ValueError, match="must be SUM"):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)


def test_sparse_sum():
    run_ranks(3, check_sparse)


def check_sparse_mismatch(rank: int, size: int) -> str:
    x = torch.sparse_coo_tensor(torch.zeros(1, 1).long(), torch.ones(1), (3 + rank,))
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(x)
    with pytest.raises(dist.DistBackendError, match="sparse allreduce"):
        dist.barrier()
    return str(caught.value)


def test_sparse_mismatch():
    for message in run_ranks(2, check_sparse_mismatch):
        assert "rank 0 passed" in message and "[3]" in message and "[4]" in message, message


# ---- overlapping arguments


def check_overlap(rank: int, size: int) -> None:
    x = torch.arange(size * 2, dtype=torch.float32) + 100 * rank
    dist.all_to_all_single(x, x)
    expected = [[100 * r + 2 * rank, 100 * r + 2 * rank + 1] for r in range(size)]
    assert x.view(size, 2).tolist() == expected
    y = torch.full((size, 50_000), float(rank))
    dist.all_gather_into_tensor(y, y[rank])
    assert y.eq(torch.arange(size).view(-1, 1)).all()
    y = torch.full((size, 50_000), float(rank + 1))
    dist.all_gather_into_tensor(y, y[(rank + 1) % size])  # the slice of another rank
    assert y.eq(torch.arange(1, size + 1).view(-1, 1)).all()
    z = (torch.arange(size).view(-1, 1) + torch.zeros(1, 50_000)) * 1.0
    dist.reduce_scatter_tensor(z[rank], z)
    assert z[rank].eq(size * rank).all()


def test_overlapping_arguments():
    run_ranks(3, check_overlap)
