"""Rows of every call in torch's profiler: a row `pg::<method>` with the shapes of its inputs, a
row `pg::wait::<method>::sz:<elements>`, and torch's own row `ccl:<operation>`."""

import re
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from support import torch_names
from support.ranks import run_ranks

OPERATIONS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"

# ---- the calls
#
# Each returns the shapes that its rows must have: of the inputs, or of the outputs on a rank
# without inputs. None on a rank that makes another call.

CALLS = []


def case(name: str, method: str, title: str):
    """The call as docs/operations.md names it; pg::<method>; ccl:<title>."""

    def keep(call):
        CALLS.append((name, method, title, call))
        return call

    return keep


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def pieces(size: int, *shape: int) -> list[torch.Tensor]:
    return [ones(*shape) for _ in range(size)]


@case("all_reduce", "allreduce", "all_reduce")
def all_reduce(rank, size):
    x = ones(4, 3)
    dist.all_reduce(x)
    return [x]


@case("all_reduce", "allreduce", "all_reduce")
def all_reduce_async(rank, size):
    x = ones(4, 3)
    dist.all_reduce(x, async_op=True).wait()
    return [x]


@case("all_reduce, sparse", "allreduce_sparse", "sparse_all_reduce")
def all_reduce_sparse(rank, size):
    x = ones(4, 3).to_sparse()
    dist.all_reduce(x)
    return [x]


@case("all_reduce_coalesced", "allreduce_coalesced", "all_reduce")
def all_reduce_coalesced(rank, size):
    inputs = [ones(2), ones(5, 1)]
    dist.all_reduce_coalesced(inputs)
    return inputs


@case("broadcast", "broadcast", "broadcast")
def broadcast(rank, size):
    x = ones(2, 2)
    dist.broadcast(x, src=1)
    return [x]


@case("reduce", "reduce", "reduce")
def reduce(rank, size):
    x = ones(2, 2)
    dist.reduce(x, dst=1)
    return [x]


@case("all_gather", "allgather", "all_gather")
def all_gather(rank, size):
    x = ones(2, 3)
    dist.all_gather(pieces(size, 2, 3), x)
    return [x]


@case("all_gather_single", "_allgather_base", "_all_gather_base")
def all_gather_single(rank, size):
    x = ones(2, 3)
    dist.all_gather_single(ones(2 * size, 3), x)
    return [x]


@case("all_gather_into_tensor", "_allgather_base", "_all_gather_base")
def all_gather_into_tensor(rank, size):
    x = ones(2, 3)
    dist.all_gather_into_tensor(ones(2 * size, 3), x)
    return [x]


@case("all_gather_into_tensor, coalesced", "allgather_into_tensor_coalesced", "_all_gather_base")
def all_gather_into_tensors(rank, size):
    inputs = [ones(2), ones(3)]
    with dist.distributed_c10d._coalescing_manager():
        for x in inputs:
            dist.all_gather_into_tensor(ones(size * len(x)), x)
    return inputs


@case("all_gather_coalesced", "allgather_coalesced", "all_gather")
def all_gather_coalesced(rank, size):
    inputs = [ones(2), ones(3, 1)]
    dist.all_gather_coalesced([[ones(2), ones(3, 1)] for _ in range(size)], inputs)
    return inputs


@case("gather", "gather", "gather")
def gather(rank, size):
    x = ones(3)
    dist.gather(x, pieces(size, 3) if rank == 0 else None, dst=0)
    return [x]


@case("scatter", "scatter", "scatter")
def scatter(rank, size):
    x = ones(3)
    inputs = pieces(size, 3) if rank == 0 else None
    dist.scatter(x, inputs, src=0)
    return inputs or ([], [x])


@case("reduce_scatter", "reduce_scatter", "reduce_scatter")
def reduce_scatter(rank, size):
    inputs = pieces(size, 3)
    dist.reduce_scatter(ones(3), inputs)
    return inputs


@case("reduce_scatter_single", "_reduce_scatter_base", "_reduce_scatter_base")
def reduce_scatter_single(rank, size):
    x = ones(3 * size)
    dist.reduce_scatter_single(ones(3), x)
    return [x]


@case("reduce_scatter_tensor", "_reduce_scatter_base", "_reduce_scatter_base")
def reduce_scatter_tensor(rank, size):
    x = ones(3 * size)
    dist.reduce_scatter_tensor(ones(3), x)
    return [x]


@case("reduce_scatter_tensor, coalesced", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base")
def reduce_scatter_tensors(rank, size):
    inputs = [ones(2 * size), ones(3 * size)]
    with dist.distributed_c10d._coalescing_manager():
        for x in inputs:
            dist.reduce_scatter_tensor(ones(len(x) // size), x)
    return inputs


@case("all_to_all", "alltoall", "all_to_all")
def all_to_all(rank, size):
    inputs = pieces(size, 5)
    dist.all_to_all(pieces(size, 5), inputs)
    return inputs


@case("all_to_all_single", "alltoall_base", "all_to_all")
def all_to_all_single(rank, size):
    x = ones(size, 5)
    dist.all_to_all_single(ones(size, 5), x)
    return [x]


def rank_0_sends(rank, send, recv):
    x = ones(7)
    send(x, 1) if rank == 0 else recv(x)
    return x


@case("send", "send", "send")
def send(rank, size):
    x = rank_0_sends(rank, dist.send, lambda x: dist.recv(x, 0))
    return [x] if rank == 0 else None


@case("isend", "send", "send")
def isend(rank, size):
    x = rank_0_sends(rank, lambda x, to: dist.isend(x, to).wait(), lambda x: dist.recv(x, 0))
    return [x] if rank == 0 else None


@case("recv", "recv", "recv")
def recv(rank, size):
    x = rank_0_sends(rank, dist.send, lambda x: dist.recv(x, 0))
    return [x] if rank == 1 else None


@case("irecv", "recv", "recv")
def irecv(rank, size):
    x = rank_0_sends(rank, dist.send, lambda x: dist.irecv(x, 0).wait())
    return [x] if rank == 1 else None


@case("recv, from any", "recvAnysource", "recvAnySource")
def recv_any(rank, size):
    x = rank_0_sends(rank, dist.send, dist.recv)
    return [x] if rank == 1 else None


@case("barrier", "barrier", "barrier")
def barrier(rank, size):
    dist.barrier()
    return []


# ---- the rows


def rows_of(call, rank: int, size: int):
    """Returns the result of the call and all its profiler rows, ours and torch's, with shapes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates some of the names
        with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
            seen = call(rank, size)
    names = ("pg::", "ccl:")
    rows = [(e.name, e.input_shapes) for e in profile.events() if e.name.startswith(names)]
    return seen, sorted(rows)


def expected_rows(method: str, title: str, seen) -> list:
    inputs, sized = seen if isinstance(seen, tuple) else (seen, seen)
    shapes = [list(x.shape) for x in inputs]
    elements = sum(x.numel() for x in sized)
    rows = [(f"pg::{method}", shapes), (f"pg::wait::{method}::sz:{elements}", [])]
    return sorted([*rows, (f"ccl:{title}", shapes)])


def check_rows(rank: int, size: int) -> None:
    for name, method, title, call in CALLS:
        seen, rows = rows_of(call, rank, size)
        if seen is not None:
            expected = expected_rows(method, title, seen)
            assert rows == expected, f"{name}: {rows} instead of {expected}"


def test_rows():
    run_ranks(2, check_rows)


def test_operations_page():
    """The page lists exactly the calls made here, with the methods that they reach."""
    page = OPERATIONS_PAGE.read_text().split("## Calls of torch.distributed")[1]
    named = re.findall(r"^\| `(\w+)`(.*?) \| `(\w+)` \|", page, re.MULTILINE)
    assert [(call + case, method) for call, case, method in named] == list(
        dict.fromkeys((name, method) for name, method, _, _ in CALLS)
    )
    for call, _, _ in named:
        assert hasattr(dist, call) or call in torch_names.NAMES, call
