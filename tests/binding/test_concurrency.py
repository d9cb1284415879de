"""Concurrent operations: no operation waits for one that it does not depend on."""

import functools
import json
import os
import signal
import sys
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch_ccl
from support.ranks import run_forked_scripts, run_ranks, run_script, started_ranks

MEGABYTES_64 = 16 << 20  # elements of float32


def everyone(size: int):
    return dist.new_group(list(range(size)))


def reduced(group, value: float, count: int = 1000, *, asynchronous: bool = True):
    """Starts an all_reduce; returns the tensor and, if asynchronous, its Work."""
    x = torch.full((count,), value)
    return x, dist.all_reduce(x, group=group, async_op=asynchronous)


def finish(x: torch.Tensor, work, expected: float) -> None:
    work.wait()
    assert x.eq(expected).all(), f"{x} instead of {expected}"


# ---- messages and collectives


def check_both_send_first(rank: int, size: int, asynchronous_first: bool) -> None:
    peer = 1 - rank
    out, into = torch.full((MEGABYTES_64,), rank + 1.0), torch.empty(MEGABYTES_64)
    pending = [dist.isend(out, peer)]
    if asynchronous_first:
        pending.append(dist.irecv(into, peer))
    else:
        dist.recv(into, peer)
    for work in pending:
        work.wait()
    assert into.eq(peer + 1).all()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_both_send_64_megabytes_first(asynchronous):
    run_ranks(2, check_both_send_first, asynchronous)


def check_recv_before_collective(rank: int, size: int) -> None:
    """Rank 0 starts a collective that rank 1 joins only after rank 0's blocking recv."""
    for count in (4, 1 << 20):
        message = torch.full((count,), 7.0)
        if rank == 0:
            x, work = reduced(None, 1.0, count)
            message.zero_()
            dist.recv(message, src=1)
            assert message.eq(7).all()
        else:
            time.sleep(0.2)
            dist.send(message, dst=0)
            x, work = reduced(None, 1.0, count)
        finish(x, work, 2)


def test_recv_before_collective():
    run_ranks(2, check_recv_before_collective)


def check_recv_after_collective(rank: int, size: int) -> None:
    """Receives are posted first, then collectives, then sends."""
    into = [torch.zeros(50_000) for _ in range(4)]
    received = [dist.irecv(x, src=1 - rank, tag=i) for i, x in enumerate(into)]
    for _ in range(20):
        x, _ = reduced(None, 1.0, asynchronous=False)
        assert x.eq(2).all()
    sent = [dist.isend(torch.full((50_000,), float(i)), dst=1 - rank, tag=i) for i in range(4)]
    for i in (2, 0, 3, 1):
        received[i].wait()
        assert into[i].eq(i).all()
    for work in sent:
        work.wait()


def test_messages_around_collectives():
    run_ranks(2, check_recv_after_collective)


def check_progress_without_waiting(rank: int, size: int) -> None:
    """A large message arrives while its receiver does not wait for it."""
    x = torch.full((MEGABYTES_64,), 1.0 - rank)
    if rank == 0:
        dist.send(x, dst=1)  # returns although the receiver does not wait
        return
    work = dist.irecv(x, src=0)
    end = time.monotonic() + 30
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.01)
    assert work.is_completed() and x.eq(1).all()


def test_progress_without_waiting():
    run_ranks(2, check_progress_without_waiting)


# ---- several groups


def check_other_order(rank: int, size: int) -> None:
    """Groups a and b are used in opposite orders, and waited for in opposite orders."""
    a, b = everyone(size), everyone(size)
    for count in (1, 1000, 300_000):
        for _ in range(10):
            order = [(a, 1.0), (b, 2.0)] if rank % 2 == 0 else [(b, 2.0), (a, 1.0)]
            pending = [(*reduced(group, value, count), value) for group, value in order]
            for x, work, value in pending if rank < 2 else reversed(pending):
                finish(x, work, size * value)


@pytest.mark.parametrize("size", [2, 4])
def test_two_groups_in_different_order(size):
    run_ranks(size, check_other_order)


def check_blocked_in_another_group(rank: int, size: int) -> None:
    """Rank 0 blocks in group a; rank 1 joins a only after rank 0's operation in b."""
    a, b = everyone(size), everyone(size)
    for count in (1, 1000, 1 << 20):
        x, work = reduced(b, 1.0, count)
        if rank == 0:
            y, _ = reduced(a, 2.0, count, asynchronous=False)
            finish(x, work, size)
        else:
            finish(x, work, size)
            y, _ = reduced(a, 2.0, count, asynchronous=False)
        assert y.eq(2 * size).all()


def test_blocked_in_another_group():
    run_ranks(2, check_blocked_in_another_group)


def check_chain(rank: int, size: int) -> None:
    """Each rank shares a group with the next; rank r blocks until rank r + 1 joins."""
    groups = [dist.new_group([r, r + 1]) for r in range(size - 1)]
    for _ in range(20):
        if rank + 1 < size:
            later, work = reduced(groups[rank], 1.0)
        if rank > 0:
            earlier, _ = reduced(groups[rank - 1], 1.0, asynchronous=False)
            assert earlier.eq(2).all()
        if rank + 1 < size:
            finish(later, work, 2)


def test_chain_of_groups():
    run_ranks(4, check_chain)


# ---- several threads


def in_threads(*functions) -> None:
    """Runs the functions in threads; raises the first exception."""
    wrong = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def check_threads(rank: int, size: int) -> None:
    """Each thread has a group; one thread also sends and receives in the group of another."""
    groups = [everyone(size) for _ in range(3)]

    def reduce_all(group):
        for i in range(50):
            x, _ = reduced(group, float(i), asynchronous=False)
            assert x.eq(i * size).all()

    def gather_all(group):
        for i in range(50):
            output = torch.empty(size, 100)
            dist.all_gather_single(output, torch.full((1, 100), rank + 10.0 * i), group=group)
            assert output[:, 0].tolist() == [r + 10.0 * i for r in range(size)]

    def start_many(group):
        pending = [reduced(group, float(i)) for i in range(50)]
        for i, (x, work) in reversed(list(enumerate(pending))):
            finish(x, work, i * size)

    def send_around(group):
        for i in range(50):
            x, y = torch.full((20_000,), rank + 10.0 * i), torch.empty(20_000)
            work = dist.isend(x, group_dst=(rank + 1) % size, group=group)
            source = (rank - 1) % size
            dist.recv(y, group_src=source, group=group)
            work.wait()
            assert y.eq(source + 10.0 * i).all()

    in_threads(
        lambda: reduce_all(groups[0]),
        lambda: gather_all(groups[1]),
        lambda: start_many(groups[2]),
        lambda: send_around(groups[0]),
    )


@pytest.mark.parametrize("size", [2, 3])
def test_threads(size):
    run_ranks(size, check_threads)


def check_batches_of_threads(rank: int, size: int) -> None:
    """A batch belongs to the thread that opened it."""
    group, peer = everyone(size), 1 - rank

    def batches():
        for i in range(50):
            x, y = torch.full((10,), float(i + rank)), torch.empty(10)
            ops = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert y.eq(i + peer).all()

    def collectives():
        for i in range(50):
            x, _ = reduced(group, float(i), asynchronous=False)
            assert x.eq(i * size).all()

    in_threads(batches, collectives)


def test_batches_of_threads():
    run_ranks(2, check_batches_of_threads)


# ---- failed batches, messages to the own rank


def check_failed_batch(rank: int, size: int) -> None:
    peer, x, y = 1 - rank, torch.full((4,), rank + 1.0), torch.zeros(4)
    unfit = {
        "sparse": dist.P2POp(dist.isend, torch.eye(2).to_sparse(), peer),
        "expanded": dist.P2POp(dist.irecv, torch.ones(1).expand(4), peer),
        "negative tag": dist.P2POp(dist.isend, x, peer, tag=-3),
    }
    for name, bad in unfit.items():
        tag = 10 + len(name)
        receive = dist.P2POp(dist.irecv, y, peer, tag=tag)
        with pytest.raises((ValueError, NotImplementedError)):
            dist.batch_isend_irecv([receive, bad])
        # torch must not be left inside of the batch
        z = torch.ones(3)
        dist.all_reduce(z)
        assert z.eq(size).all(), f"all_reduce after {name}: {z}"
        # the first receive of the batch was started and stays valid
        dist.send(x, peer, tag=tag)
        dist.barrier()
        batch = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y.zero_(), peer)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert y.eq(peer + 1).all(), f"batch after {name}: {y}"


def test_failed_batch_leaves_the_group_usable():
    run_ranks(2, check_failed_batch)


def check_send_to_self(rank: int, size: int) -> None:
    group = dist.group.WORLD
    for count in (0, 1, 1000, 1 << 20):
        x = torch.full((count,), rank + 1.0)
        y, z = torch.zeros(count), torch.zeros(count)
        sent = group.send([x], rank, 3)
        received = group.recv([y], rank, 3)
        received.wait()
        sent.wait()
        batch = [dist.P2POp(dist.irecv, z, rank), dist.P2POp(dist.isend, x, rank)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert torch.equal(y, x) and torch.equal(z, x)


@pytest.mark.parametrize("size", [1, 2])
def test_send_to_self(size):
    run_ranks(size, check_send_to_self)


# ---- forked children


def check_forked_child(rank: int, size: int) -> None:
    """Rank 1 dies while its forked child lives: the other ranks must detect the death."""
    child = torch.zeros(1, dtype=torch.int64)
    dist.all_reduce(child)
    if rank == 1:
        child += os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    dist.broadcast(child, src=1)
    if rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 \(host"):
        dist.all_reduce(torch.ones(4))
    os.kill(int(child), signal.SIGKILL)  # fails if the child has exited


def test_forked_child_does_not_hold_the_group_open():
    with started_ranks(2, check_forked_child, bound_s=30) as ranks:
        pass
    assert not ranks[0].failure, ranks[0].failure
    assert ranks[1].process.exitcode == -signal.SIGKILL


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.tensor([float(i)])


def check_loader(rank: int, size: int) -> None:
    """Data loader workers are forked during an operation, and outlive the group."""
    y, pending = torch.full((1000,), rank + 1.0), []
    if rank == 0:
        pending.append(dist.all_reduce(y, async_op=True))
        pending.append(dist.irecv(torch.empty(10), src=1))
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=8, num_workers=2, persistent_workers=True
    )
    batches = iter(loader)
    first = next(batches)
    if rank == 1:
        pending.append(dist.all_reduce(y, async_op=True))
        pending.append(dist.isend(torch.ones(10), dst=0))
    for work in pending:
        work.wait()
    assert y.eq(size * (size + 1) / 2).all()
    total = first.sum()
    for batch in batches:
        dist.all_reduce(batch)
        total += batch.sum() / size
    assert total == sum(range(32))
    dist.destroy_process_group()
    assert sum(batch.sum() for batch in loader) == sum(range(32))


def test_data_loader():
    run_ranks(2, check_loader)


# ---- exit without destroy_process_group()

EXIT_SCRIPTS = {
    "after an exchange": """
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)])
for work in works: work.wait()
""",
    "message nobody receives": "work = dist.isend(x, peer) if rank == 0 else time.sleep(0.5)",
    "small message nobody receives": "work = dist.isend(x[:4], peer) if rank == 0 else None",
    "message nobody sends": "work = dist.irecv(y, peer) if rank == 0 else time.sleep(0.5)",
    "open batch": "dist.group.WORLD._start_coalescing(torch.device('cpu')); dist.all_reduce(x)",
    "not waited for": """
works = [dist.all_reduce(torch.ones(1 << 16), async_op=True) for _ in range(20)]
works += [dist.broadcast(torch.ones(16), 0, async_op=True)]
works += [dist.all_reduce(torch.ones(8), group=dist.new_group([0, 1]), async_op=True)]
dist.barrier()
""",
    "not waited for, and the peer is late": """
if rank == 0:
    dist.all_reduce(x, async_op=True)
else:
    time.sleep(1)
    dist.all_reduce(x)
    assert x[0].item() == 2
""",
    "callback under way": """
work = dist.all_reduce(x, async_op=True)
work.get_future().then(lambda future: time.sleep(0.3))
work.wait()
""",
    "thread that is blocked": """
def blocked():
    with contextlib.suppress(dist.DistBackendError):
        dist.recv(y, peer)
threading.Thread(target=blocked, daemon=True).start() if rank == 0 else None
time.sleep(0.3)
""",
    "completion hook": """
dist.group.WORLD._register_on_completion_hook(lambda info: None)
dist.all_reduce(x)
""",
    "failed group": """
try:
    dist.all_reduce(x[:rank + 1])
except dist.DistBackendError:
    pass
""",
}
# One interpreter imports torch and forks two ranks for each script; a rank exits like any Python
# program, with atexit handlers and destructors.
LEAVE = """
import contextlib, faulthandler, json, os, sys, threading, time
import torch, torch.distributed as dist, torch_ccl

def start(directory, rank, words):
    pid = os.fork()
    if pid:
        return pid
    faulthandler.dump_traceback_later(40, exit=True)
    os.dup2(os.open(f"{directory}/{rank}", os.O_WRONLY | os.O_CREAT), 2)
    dist.init_process_group(
        "ccl", init_method=f"file://{directory}/store", rank=rank, world_size=2
    )
    names = {"rank": rank, "peer": 1 - rank, "x": torch.ones(1 << 18), "y": torch.empty(1 << 18)}
    exec(words, globals() | names)
    sys.exit(0)

for i, words in enumerate(json.loads(sys.argv[1])):
    directory = f"{sys.argv[2]}/{i}"
    os.mkdir(directory)
    pids = [start(directory, rank, words) for rank in (0, 1)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    errors = [open(f"{directory}/{rank}").read() for rank in (0, 1)]
    print(json.dumps([codes, errors]), flush=True)
"""


@functools.cache
def exits() -> dict[str, tuple[list[int], list[str]]]:
    """Returns the exit codes and stderr of the ranks of each of EXIT_SCRIPTS."""
    with tempfile.TemporaryDirectory() as directory:
        out = run_script(LEAVE, json.dumps(list(EXIT_SCRIPTS.values())), directory, bound_s=150)
    return dict(zip(EXIT_SCRIPTS, map(json.loads, out.splitlines()), strict=True))


@pytest.mark.timeout(180)  # the first test runs all scripts
@pytest.mark.xdist_group("exits")
@pytest.mark.parametrize("name", EXIT_SCRIPTS)
def test_exit_without_destroy(name):
    codes, errors = exits()[name]
    assert codes == [0, 0] and errors == ["", ""], f"{codes}\n{errors[0]}\n{errors[1]}"


# Rank 0 ends with an operation in progress; the lock shows when its process has ended.
EXIT_WITH_STATUS = """
import fcntl, os, sys, time
import torch, torch.distributed as dist, torch_ccl
rank, directory, ending = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("ccl", init_method=f"file://{directory}/store", rank=rank, world_size=2)
lock = open(f"{directory}/lock", "w")
if rank == 0:
    fcntl.flock(lock, fcntl.LOCK_EX)
dist.barrier()
if rank == 0:
    dist.all_reduce(torch.ones(1), async_op=True)
    exec(ending)
    os._exit(9)  # not reached
end = time.monotonic() + 8
has_ended = False
while not has_ended and time.monotonic() < end and "(0)" not in ending:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        has_ended = True
    except BlockingIOError:
        time.sleep(0.01)
try:
    dist.all_reduce(torch.ones(1))
    print(has_ended, "completed", flush=True)
except dist.DistBackendError as error:
    print(has_ended, "left group" in str(error) or "operations in flight" in str(error), flush=True)
os._exit(0)
"""


def test_sys_exit_on_another_thread_does_not_end_the_script():
    def end_thread() -> None:
        with pytest.raises(SystemExit):
            sys.exit(3)

    thread = threading.Thread(target=end_thread)
    thread.start()
    thread.join()
    assert torch_ccl.environment._last_exit[0] != 3


@pytest.mark.parametrize(
    ("ending", "code", "peer"),
    [
        ("sys.exit(0)", 0, "False completed"),
        ("sys.exit(3)", 3, "True True"),
        ("sys.exit('failed')", 1, "True True"),
        ("raise ValueError", 1, "True True"),
    ],
)
def test_exit_with_an_operation_in_progress(ending, code, peer, tmp_path):
    """A script that ends by a failure does not wait for peers: they may never join."""
    first, second = run_forked_scripts(
        EXIT_WITH_STATUS, [(str(rank), str(tmp_path), ending) for rank in range(2)]
    )
    assert first[0] == code, first
    assert second[1].strip() == peer, second
