"""Staging with late or stuck streams, dead ranks, and memory that cannot be pinned."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from support.staging_ranks import SUM, check, delayed, device_of, fails

LONG_MS = 15_000  # longer than any check waits


# ---- collectives


@check
def a_stream_that_does_not_come_ends_in_time(rank, size):
    """The stream of one rank is late; the error on the other rank names that rank."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    tensor = delayed(rank, delay_ms=LONG_MS if rank == 0 else 1)
    time.sleep(rank / 2)  # so that rank 0 times out first
    with fails("standin:0 of rank 0 did not reach this operation", within_s=10):
        dist.all_reduce(tensor, group=group)


@check
def a_stream_that_does_not_come_is_named_by_its_rank(rank, size):
    """The other rank may time out first: it cannot know the reason."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    tensor = delayed(rank, delay_ms=LONG_MS if rank == 0 else 1)
    time.sleep((1 - rank) / 2)
    words = ["standin:0 of rank 0 had not reached"] if rank == 0 else ["rank 0 (host"]
    with fails(*words, within_s=10):
        dist.all_reduce(tensor, group=group)


@check
def without_pinned_memory(rank, size):
    """Copies block the host then, but only when the stream reaches them."""
    torch.standin.refuse_pinned(True)
    tensor = delayed(rank)
    dist.all_reduce(tensor)
    assert (tensor.cpu() == SUM).all()
    group = dist.new_group(timeout=timedelta(seconds=1))
    time.sleep(rank / 2)
    with fails("standin:0 of rank 0 did not reach", within_s=10):
        dist.all_reduce(delayed(rank, delay_ms=LONG_MS if rank == 0 else 1), group=group)


@check
def a_peer_that_dies_while_copies_are_under_way(rank, size):
    """Rank 1 dies; see DYING."""
    die_in_all_reduce(rank)


@check
def a_peer_that_dies_where_no_memory_can_be_pinned(rank, size):
    torch.standin.refuse_pinned(True)
    die_in_all_reduce(rank)


def die_in_all_reduce(rank):
    tensor = delayed(rank, delay_ms=LONG_MS)
    if rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with fails("rank 1 (host", "died", within_s=10):
        dist.all_reduce(tensor)


@check
def abort_ends_the_wait_for_a_stream(rank, size):
    tensor = delayed(rank, delay_ms=LONG_MS)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    threading.Timer(1, backend.abort).start()
    with fails("abort", within_s=10):
        dist.all_reduce(tensor)


@check
def a_signal_ends_the_wait_for_a_stream(rank, size):
    if rank == 0:
        tensor = delayed(rank, delay_ms=LONG_MS)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            dist.all_reduce(tensor)
        except KeyboardInterrupt:
            assert time.monotonic() - start < 10
        else:
            raise AssertionError("it was not interrupted")
    else:
        with fails("failed on rank 0: KeyboardInterrupt", within_s=20):
            dist.all_reduce(delayed(rank))


@check
def a_receive_that_nobody_waits_for_costs_nothing(rank, size):
    """A receive whose Work is dropped is cancelled, although its stream is late."""
    dist.barrier()
    behind = delayed(rank, delay_ms=1000)
    start = time.monotonic()
    for _ in range(20):
        dist.irecv(torch.empty_like(behind), src=1 - rank)
    assert time.monotonic() - start < 0.9
    dist.barrier()
    into = torch.zeros(1000, device=device_of(rank))
    work = dist.isend(delayed(rank, delay_ms=1), 1 - rank)
    dist.recv(into, src=1 - rank)
    work.wait()
    assert (into.cpu() == 2 - rank).all()


# ---- receives


@check
def a_receive_waits_for_its_stream_elsewhere(rank, size):
    """The call, get_future() and a wait with a shorter timeout do not wait for the stream."""
    if rank == 0:
        work = dist.isend(torch.full((1000,), 5.0, device=device_of(rank)), 1)
        dist.barrier()
        work.wait()
        return
    dist.barrier()
    late_ms = 4000
    into = delayed(rank, delay_ms=late_ms)
    start = time.monotonic()
    work = dist.irecv(into, 0)
    future = work.get_future()
    with fails("wait() timed out", within_s=late_ms / 2000):
        work.wait(timedelta(milliseconds=50))
    assert time.monotonic() - start < late_ms / 2000 and not work.is_completed()
    doubled = future.then(lambda f: f.value()[0] * 2).wait()
    assert work.is_completed() and (into.cpu() == 5).all() and (doubled.cpu() == 10).all()


@check
def a_future_is_enough_to_keep_a_receive(rank, size):
    """Only the Future holds the receive, whether the message has arrived or not."""
    value = torch.full((1000,), 5.0, device=device_of(rank))
    for is_there in (True, False):
        if rank == 0:
            time.sleep(0 if is_there else 0.5)
            dist.send(value, 1)
        else:
            time.sleep(0.5 if is_there else 0)
            into = delayed(rank, delay_ms=200)
            dist.irecv(into, 0).get_future().wait()
            assert (into.cpu() == 5).all()


@check
def a_receive_that_has_failed_writes_nothing_later(rank, size):
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        dist.send(torch.full((1000,), 5.0), 1, group=group)
    else:
        into = delayed(rank, delay_ms=3000)
        torch.standin.set_delay_ms(500)  # the duration of a copy that is enqueued meanwhile
        with fails("standin:1 of rank 1 did not reach", within_s=10):
            dist.irecv(into, 0, group=group).wait()
        torch.standin.set_delay_ms(0)
        into.fill_(-1)
        time.sleep(4)
        assert (into.cpu() == -1).all()
    dist.barrier()  # the group is usable


@check
def a_receive_whose_stream_does_not_come_ends_with_the_process(rank, size):
    """The process exits without destroying the group."""
    code = f"""
import datetime, os, time, torch, torch.distributed as dist
dist.init_process_group("ccl", init_method="file://{{}}", rank={rank}, world_size={size})
if {rank} == 0:
    dist.send(torch.ones(10), 1)
    time.sleep(3)
else:
    into = torch.zeros(10, device="standin:1")
    torch.standin.synchronize(1)
    torch.standin.set_delay_ms({LONG_MS})
    start = time.monotonic()
    into.copy_(torch.ones(10), non_blocking=True)
    work = dist.irecv(into, 0)
    try:
        work.wait(datetime.timedelta(seconds=1))
    except dist.DistBackendError:
        print("given up", flush=True)
    import torch_ccl
    torch_ccl._C._close(datetime.timedelta(0))  # at exit; then the device waits for its stream
    assert time.monotonic() - start < {LONG_MS / 1000}, "it waited for the stream"
    print("closed", flush=True)
    os._exit(0)
"""
    store = [tempfile.mkdtemp() + "/store" if rank == 0 else None]
    dist.broadcast_object_list(store, src=0)
    words = [sys.executable, "-c", code.format(store[0])]
    output = subprocess.run(words, check=True, timeout=50, stdout=subprocess.PIPE, text=True).stdout
    assert output.split("\n")[:-1] == ([] if rank == 0 else ["given up", "closed"]), output
    if rank == 0:
        shutil.rmtree(Path(store[0]).parent)


@check
def a_receive_whose_stream_does_not_come_ends_with_the_group(rank, size):
    group = dist.new_group()
    if rank == 0:
        dist.send(torch.ones(1000), 1, group=group)
        return
    work = dist.irecv(delayed(rank, delay_ms=LONG_MS), 0, group=group)
    with contextlib.suppress(dist.DistBackendError):
        work.wait(timedelta(seconds=1))
    dist.destroy_process_group(group)
    with fails("standin:1 of rank 1", within_s=10):
        work.wait()
