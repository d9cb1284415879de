"""The calls in which faults happen: one row per call of torch. Each checks its results.

A call is determined by a seed that all ranks share (Job.seed), so every rank makes the same call.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_ccl
from support.torch_exchange import Case
from support.torch_operations import OPERATIONS, make_exchange

#: Inline in a step header, one slot, several chunks.
SHAPES = [(7,), (1000,), (70_001,)]
#: Of zero-copy tensors, in elements.
ZERO_COPY_COUNTS = [1000, 300_000]


@dataclass(frozen=True)
class Job:
    """What all ranks know about a call."""

    rank: int
    size: int
    seed: str
    timeout: timedelta
    over_hosts: bool = False

    def choice(self, what: str, choices: list):
        return random.Random(f"{self.seed}/{what}").choice(choices)

    @property
    def root(self) -> int:
        return self.choice("root", list(range(self.size)))


@dataclass(frozen=True)
class Call:
    run: Callable[[Job], None]
    names: tuple[str, ...]  # in errors


# ---- collectives and messages of torch, with the references of tests/support


def exchanged(operation: str) -> Callable[[Job], None]:
    row = OPERATIONS[operation]

    def run(job: Job) -> None:
        dtype = job.choice("dtype", [torch.float32, torch.bfloat16, torch.int64])
        # Sums of floats over hosts are rounded as the layout of the hosts demands.
        inexact = job.over_hosts and dtype.is_floating_point
        reductions = ["MAX"] if inexact else ["SUM", "MAX"]
        case = Case(
            seed=job.seed,
            operation=operation,
            dtype=dtype,
            reduction=job.choice("reduction", reductions) if row.reduces else None,
            size=job.size,
            shape=job.choice("shape", SHAPES),
            interface=job.choice("interface", list(row.interfaces)),
            asynchronous=job.choice("asynchronous", [False, True]),
            root=job.root,
            flavour="ordinary",
        )
        exchange = make_exchange(case, job.rank, dist.group.WORLD)
        exchange.issue()
        exchange.wait()
        exchange.raise_errors()
        exchange.verify()

    return run


# ---- others


def zero_copy(job: Job) -> tuple[int, torch.Tensor]:
    count = job.choice("count", ZERO_COPY_COUNTS)
    return count, torch_ccl.empty(count).fill_(job.rank + 1.0)


def check(right: bool) -> None:
    assert right, "wrong data"


def zero_copy_all_reduce(job: Job) -> None:
    _, x = zero_copy(job)
    dist.all_reduce(x)
    check(x.eq(job.size * (job.size + 1) / 2).all())


def zero_copy_broadcast(job: Job) -> None:
    _, x = zero_copy(job)
    dist.broadcast(x, job.root)
    check(x.eq(job.root + 1).all())


def zero_copy_all_gather(job: Job) -> None:
    count, x = zero_copy(job)
    output = torch_ccl.empty(job.size, count)
    dist.all_gather_single(output, x)
    check(all(row.eq(r + 1).all() for r, row in enumerate(output)))


def zero_copy_messages(job: Job) -> None:
    count, x = zero_copy(job)
    y = torch_ccl.empty(count)
    batch = [
        dist.P2POp(dist.isend, x, (job.rank + 1) % job.size),
        dist.P2POp(dist.irecv, y, (job.rank - 1) % job.size),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    check(y.eq((job.rank - 1) % job.size + 1).all())


def all_reduces_in_flight(job: Job) -> None:
    count = job.choice("shape", SHAPES)[0]
    tensors = [torch.full((count,), job.rank + 1.0) for _ in range(5)]
    for work in [dist.all_reduce(x, async_op=True) for x in tensors]:
        work.wait()
    check(all(x.eq(job.size * (job.size + 1) / 2).all() for x in tensors))


def barrier(job: Job) -> None:
    dist.barrier(async_op=job.choice("asynchronous", [False, True])) or None


def monitored_barrier(job: Job) -> None:
    torch_ccl.monitored_barrier(wait_all_ranks=job.choice("all", [False, True]))


def check_sum_of_ones(group, size: int) -> None:
    x = torch.ones(10)
    group.allreduce([x]).wait()
    check(x.eq(size).all())


def new_group(job: Job) -> None:
    group = dist.new_group(timeout=job.timeout)
    check_sum_of_ones(group, job.size)
    dist.destroy_process_group(group)


def split_group(job: Job) -> None:
    """Into the last rank and the others, whose ranks stay the same: errors name them."""
    last = job.size - 1
    part = [last] if job.rank == last else list(range(last))
    name = f"part {job.seed} of {part[0]}"
    group = dist.group.WORLD.split_group(part, timeout=job.timeout, group_name=name)
    check_sum_of_ones(group, len(part))


def warm_up(size: int, first_size: int) -> None:
    """Uses what calls use: threads, and memory that the heap keeps after its tensors.
    `first_size` is that of the first group."""
    most = max(ZERO_COPY_COUNTS)
    tensors = [torch_ccl.empty(*shape).fill_(1) for shape in [(most,), (most,), (first_size, most)]]
    del tensors
    all_reduces_in_flight(Job(dist.get_rank(), size, "", timedelta()))
    check_sum_of_ones(dist.group.WORLD, size)


_MESSAGES = ("send", "recv")
_NAMES = {
    "all_reduce": ("allreduce",),
    "all_gather": ("allgather",),
    "reduce_scatter": ("reduce_scatter",),
    "all_to_all": ("alltoall",),
    "send_recv": _MESSAGES,
    "recv_any_source": _MESSAGES,
    "batch_send_recv": _MESSAGES,
}


def names_of(operation: str) -> tuple[str, ...]:
    for start, names in _NAMES.items():
        if operation.startswith(start):
            return names
    return (operation.split()[0],)


CALLS = {
    **{name: Call(exchanged(name), names_of(name)) for name in OPERATIONS},
    "zero-copy all_reduce": Call(zero_copy_all_reduce, ("allreduce",)),
    "zero-copy broadcast": Call(zero_copy_broadcast, ("broadcast",)),
    "zero-copy all_gather": Call(zero_copy_all_gather, ("allgather",)),
    "zero-copy messages": Call(zero_copy_messages, _MESSAGES),
    "all_reduces in flight": Call(all_reduces_in_flight, ("allreduce",)),
    "barrier": Call(barrier, ("barrier",)),
    "monitored_barrier": Call(monitored_barrier, ("monitoredBarrier", *_MESSAGES)),
    "new_group": Call(new_group, ("init of group", "allreduce")),
    "split_group": Call(split_group, ("init of group", "allreduce")),
}
#: Making the group of all ranks is call 0 of every trial.
INIT = Call(lambda job: None, ("init of group",))
