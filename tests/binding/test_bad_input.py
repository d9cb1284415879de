"""Invalid calls.

An error that one rank can detect alone raises ValueError before anything is sent; the group stays
usable. A disagreement between ranks raises DistBackendError on all of them; the message names both
sides, and the group has failed for the same reason from then on.
"""

import functools
import itertools
import re

import pytest
import torch
import torch.distributed as dist
from support.ranks import run_ranks
from torch._C import _distributed_c10d as c10d

CPU = torch.device("cpu")


def options(kind: str, **fields):
    made = getattr(c10d, kind + "Options")()
    made.asyncOp = False
    for name, value in fields.items():
        setattr(made, name, value)
    return made


# ---- detected by one rank: the call, and the argument that the message must name
#
# `to` is the backend, `n` the number of ranks; four elements are valid, any other number is not.

F4, F5, D4 = torch.ones(4), torch.ones(5), torch.ones(4, dtype=torch.float64)
SPARSE = torch.eye(4).to_sparse()


def root(kind: str, rank: int, **fields):
    return options(kind, rootRank=rank, **fields)


WRONG_ROOT = {
    "broadcast": (lambda to, n: to.broadcast([F4], root("Broadcast", n)), "root"),
    "broadcast -1": (lambda to, n: to.broadcast([F4], root("Broadcast", -1)), "root"),
    "reduce": (lambda to, n: to.reduce([F4], root("Reduce", n)), "root"),
    "gather": (lambda to, n: to.gather([], [F4], root("Gather", n)), "root"),
    "scatter": (lambda to, n: to.scatter([F4], [], root("Scatter", n)), "root"),
    "send": (lambda to, n: to.send([F4], n, 0), "destination"),
    "recv": (lambda to, n: to.recv([F4], n, 0), "source"),
    "recv -1": (lambda to, n: to.recv([F4], -1, 0), "source"),
}


def sizes_of_all_to_all_single(out_splits, in_splits):
    return lambda to, n: to.alltoall_base(
        torch.ones(2 * n), torch.ones(2 * n), out_splits(n), in_splits(n)
    )


WRONG_SIZE = {
    "all_gather, too few outputs": (lambda to, n: to.allgather([[F4] * (n - 1)], [F4]), "output"),
    "all_gather, own output": (lambda to, n: to.allgather([[F5] * n], [F4]), "output"),
    "all_gather, two inputs": (lambda to, n: to.allgather([[F4] * n], [F4, F4]), "input"),
    "all_gather_single": (lambda to, n: to._allgather_base(torch.ones(4 * n + 1), F4), "output"),
    "reduce_scatter, too many": (lambda to, n: to.reduce_scatter([F4], [[F4] * (n + 1)]), "input"),
    "reduce_scatter, own input": (lambda to, n: to.reduce_scatter([F4], [[F5] * n]), "input"),
    "reduce_scatter_single": (
        lambda to, n: to._reduce_scatter_base(F4, torch.ones(4 * n - 1)),
        "input",
    ),
    "all_to_all, too few outputs": (lambda to, n: to.alltoall([F4] * (n - 1), [F4] * n), "output"),
    "all_to_all, too many inputs": (lambda to, n: to.alltoall([F4] * n, [F4] * (n + 1)), "input"),
    "all_to_all_single, not divisible": (
        lambda to, n: to.alltoall_base(torch.ones(2 * n), torch.ones(2 * n + 1), [], []),
        "input",
    ),
    "all_to_all_single, sum of splits": (
        sizes_of_all_to_all_single(lambda n: [2] * n, lambda n: [3] * n),
        "input",
    ),
    "all_to_all_single, number of splits": (
        sizes_of_all_to_all_single(lambda n: [2 * n], lambda n: [2] * n),
        "output",
    ),
    "all_to_all_single, negative split": (
        sizes_of_all_to_all_single(lambda n: [2] * n, lambda n: [-1, 3] + [2] * (n - 2) + [0]),
        "input",
    ),
    "all_reduce of nothing": (lambda to, n: to.allreduce([]), "tensors"),
    "all_reduce of two": (lambda to, n: to.allreduce([F4, F4]), "tensors"),
    "all_reduce of an expanded tensor": (
        lambda to, n: to.allreduce([torch.ones(1).expand(4)]),
        "tensor",
    ),
    "recv into an expanded tensor": (
        lambda to, n: to.recv([torch.ones(1).expand(4)], 0, 0),
        "tensor",
    ),
    "send with a negative tag": (lambda to, n: to.send([F4], 0, -5), "tag"),
}

OTHER_DTYPE = {
    "all_gather": (lambda to, n: to.allgather([[D4] * n], [F4]), "output"),
    "all_gather_single": (
        lambda to, n: to._allgather_base(torch.ones(4 * n, dtype=torch.float64), F4),
        "output",
    ),
    "reduce_scatter": (lambda to, n: to.reduce_scatter([D4], [[F4] * n]), "input"),
    "reduce_scatter_single": (
        lambda to, n: to._reduce_scatter_base(D4, torch.ones(4 * n)),
        "output",
    ),
    "all_to_all": (lambda to, n: to.alltoall([D4] * n, [F4] * n), "input"),
    "all_to_all, within a list": (
        lambda to, n: to.alltoall([F4] * n, [F4] * (n - 1) + [D4]),
        "input",
    ),
    "all_to_all_single": (
        lambda to, n: to.alltoall_base(torch.ones(n, dtype=torch.int32), torch.ones(n), [], []),
        "output",
    ),
    "no such dtype": (lambda to, n: to.allreduce([F4.to(torch.float8_e8m0fnu)]), "tensor"),
}


def freed(count: int) -> torch.Tensor:
    """A tensor whose storage was given back, as FSDP does with gathered parameters."""
    tensor = torch.ones(count)
    tensor.untyped_storage().resize_(0)
    return tensor


def too_long() -> torch.Tensor:
    """The last of its four elements is beyond the storage."""
    tensor = torch.ones(10).as_strided((4,), (3,))
    tensor.untyped_storage().resize_(9 * 4)
    return tensor


WRONG_STORAGE = {
    "all_reduce": (lambda to, n: to.allreduce([freed(4)]), "tensor"),
    "all_reduce, strided": (lambda to, n: to.allreduce([too_long()]), "tensor"),
    "broadcast": (lambda to, n: to.broadcast([freed(4)], root("Broadcast", 0)), "tensor"),
    "all_gather, input": (lambda to, n: to.allgather([[F4] * n], [freed(4)]), "input"),
    "all_gather, output": (
        lambda to, n: to.allgather([[torch.ones(4)] * (n - 1) + [freed(4)]], [F4]),
        "output_list",
    ),
    "_allgather_base": (lambda to, n: to._allgather_base(freed(4 * n), F4), "output"),
    "send": (lambda to, n: to.send([freed(4)], 0, 0), "tensor"),
    "recv": (lambda to, n: to.recv([freed(4)], 0, 0), "tensor"),
}
NOT_DENSE = {
    "broadcast": (lambda to, n: to.broadcast([SPARSE], root("Broadcast", 0)), "tensor"),
    "reduce": (lambda to, n: to.reduce([SPARSE], root("Reduce", 0)), "tensor"),
    "all_gather, input": (lambda to, n: to.allgather([[F4] * n], [SPARSE]), "input"),
    "all_gather, output": (lambda to, n: to.allgather([[SPARSE] * n], [F4]), "output"),
    "all_gather_single": (lambda to, n: to._allgather_base(F4, SPARSE), "input"),
    "gather": (lambda to, n: to.gather([], [SPARSE], root("Gather", 0)), "input"),
    "scatter": (lambda to, n: to.scatter([SPARSE], [], root("Scatter", 0)), "output"),
    "reduce_scatter": (lambda to, n: to.reduce_scatter([F4], [[SPARSE] * n]), "input"),
    "reduce_scatter_single": (lambda to, n: to._reduce_scatter_base(F4, SPARSE), "input"),
    "all_to_all": (lambda to, n: to.alltoall([F4] * n, [SPARSE] * n), "input"),
    "all_to_all_single": (lambda to, n: to.alltoall_base(F4, SPARSE, [], []), "input"),
    "all_reduce_coalesced": (lambda to, n: to.allreduce_coalesced([F4, SPARSE]), "tensor"),
    "all_reduce of CSR": (lambda to, n: to.allreduce([torch.eye(4).to_sparse_csr()]), "tensor"),
    "send": (lambda to, n: to.send([SPARSE], 0, 0), "tensor"),
    "recv": (lambda to, n: to.recv([SPARSE], 0, 0), "tensor"),
    "no CPU tensor": (lambda to, n: to.allreduce([torch.ones(4, device="meta")]), "tensor"),
}

# Reductions that are undefined for a dtype.
UNDEFINED = {
    (torch.int32, "AVG"),
    (torch.uint8, "AVG"),
    (torch.bool, "AVG"),
    (torch.complex64, "MIN"),
    (torch.complex128, "MAX"),
    (torch.float32, "BAND"),
    (torch.bfloat16, "BOR"),
    (torch.complex64, "BXOR"),
    (torch.bool, "PREMUL_SUM"),
}
REDUCING = {
    "all_reduce": lambda to, n, x, op: to.allreduce([x], options("Allreduce", reduceOp=op)),
    "all_reduce_coalesced": lambda to, n, x, op: to.allreduce_coalesced(
        [x, x], options("AllreduceCoalesced", reduceOp=op)
    ),
    "reduce": lambda to, n, x, op: to.reduce([x], options("Reduce", reduceOp=op, rootRank=0)),
    "reduce_scatter": lambda to, n, x, op: to.reduce_scatter(
        [x], [[x] * n], options("ReduceScatter", reduceOp=op)
    ),
    "reduce_scatter_single": lambda to, n, x, op: to._reduce_scatter_base(
        x, x.repeat(n), options("ReduceScatter", reduceOp=op)
    ),
}


def reduce_op(name: str):
    return dist._make_nccl_premul_sum(2.0) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)


def check_refused(backend, group_name: str, call, argument: str) -> str:
    """The call raises, names the argument, and does not count as a collective."""
    before = backend._get_sequence_number_for_group()
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value).split("\n")[0]
    assert f"rank {backend.rank()} of group {group_name}" in message, message
    assert re.search(f"`{argument}", message), f"{argument}: {message}"
    assert backend._get_sequence_number_for_group() == before
    return message


def check_usable(group, size: int) -> None:
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert x.eq(size).all()


def check_rows(rows: dict, group, name: str) -> list[str]:
    backend = group._get_backend(CPU)
    return [
        check_refused(backend, name, functools.partial(call, backend, backend.size()), argument)
        for call, argument in rows.values()
    ]


def check_table(rank: int, size: int, name: str) -> None:
    """Runs the table on the world, on a smaller group, and on one rank only: other ranks are not
    affected."""
    world, part = dist.group.WORLD, dist.new_group([0, 1])
    messages = check_rows(TABLES[name], world, "world")
    if rank in (0, 1):
        messages += check_rows(TABLES[name], part, part.group_name)
        check_usable(part, 2)
    if rank == 0:
        check_rows(TABLES[name], world, "world")
    check_usable(world, size)
    if name == "root":
        assert all("is not a rank of this group" in message for message in messages), messages


TABLES = {
    "root": WRONG_ROOT,
    "size": WRONG_SIZE,
    "dtype": OTHER_DTYPE,
    "dense": NOT_DENSE,
    "storage": WRONG_STORAGE,
}


@pytest.mark.parametrize("name", TABLES)
def test_refused(name):
    run_ranks(3, check_table, name)


def check_types_and_words(rank: int, size: int) -> None:
    """Programs written for torch's own and for Intel's backend look for these."""
    import torch_ccl

    calls = {
        "output tensor size must be equal to world_size times input tensor size": lambda: (
            dist.all_gather_into_tensor(torch.ones(4 * size + 1), F4)
        ),
        "Tensors are not equal in data type": lambda: dist.group.WORLD._allgather_base(
            torch.ones(4 * size, dtype=torch.float64), F4
        ),
    }
    for words, call in calls.items():
        for error in (RuntimeError, ValueError, torch_ccl.InvalidArgument):
            with pytest.raises(error, match=words):
                call()


def test_types_and_words():
    run_ranks(2, check_types_and_words)


def check_undefined(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(CPU)
    for dtype, reduction in sorted(UNDEFINED, key=str):
        x, op = torch.ones(4).to(dtype), reduce_op(reduction)
        for name, call in REDUCING.items():
            message = check_refused(
                backend, "world", lambda c=call, x=x, op=op: c(backend, size, x, op), "op"
            )
            assert reduction.lower() in message, f"{name}: {message}"
    check_usable(None, size)


def test_undefined_reductions():
    run_ranks(2, check_undefined)


def check_repeated_output(rank: int, size: int) -> None:
    """A tensor that is in an output list twice has the later entry's data, on every rank."""
    x = torch.full((1000,), float(rank))
    output = torch.full((1000,), -1.0)
    dist.all_gather([output] * size, x)
    assert output.eq(size - 1).all()
    base = torch.full((1500,), -1.0)
    work = dist.all_gather([base[:1000], base[500:], output][:size], x, async_op=True)
    work.wait()
    assert base[:500].eq(0).all() and base[500:].eq(1).all() and output.eq(2).all()
    blocks = [torch.full((1000,), float(rank))] * size
    dist.all_to_all([output] * size, blocks)
    assert output.eq(size - 1).all()
    if rank == 0:
        dist.gather(x, [output] * size, dst=0)
        assert output.eq(size - 1).all()
    else:
        dist.gather(x, dst=0)


def test_repeated_output():
    run_ranks(3, check_repeated_output)


def check_functions(rank: int, size: int) -> None:
    """Makes the same calls through torch.distributed's functions, which do further checks."""
    x, ints = torch.ones(4), torch.ones(4, dtype=torch.int64)
    refused = [
        ("is not a rank of this group", lambda: dist.broadcast(x, group_src=size)),
        ("is not a rank of this group", lambda: dist.reduce(x, group_dst=-1)),
        ("is not a rank of this group", lambda: dist.send(x, group_dst=size)),
        ("avg", lambda: dist.all_reduce(ints, dist.ReduceOp.AVG)),
        ("avg", lambda: dist.reduce(ints, 0, dist.ReduceOp.AVG)),
        ("avg", lambda: dist.reduce_scatter_single(ints, ints.repeat(size), dist.ReduceOp.AVG)),
        ("complex", lambda: dist.all_reduce(x.to(torch.complex64), dist.ReduceOp.MIN)),
        ("own input", lambda: dist.all_gather([torch.ones(5)] * size, x)),
        ("elements", lambda: dist.all_gather_single(torch.ones(4 * size + 1), x)),
        ("splits", lambda: dist.all_to_all_single(x, x, [1] * (size + 2), [1] * (size + 2))),
        ("different dtypes", lambda: dist.all_gather([ints] * size, x)),
        ("gather_list", lambda: dist.gather(x, [x] * size if rank else None, dst=0)),
        ("scatter_list", lambda: dist.scatter(x, [x] * size if rank else None, src=0)),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
    check_usable(None, size)


def test_functions():
    run_ranks(2, check_functions)


# ---- disagreements: the call of the other ranks, the call of rank 1, patterns of the message
#
# `g` is the group, `how` holds async_op.


def all_reduce(count=4, dtype=torch.float32, op="SUM"):
    x = torch.ones(count, dtype=dtype)
    return lambda g, how: dist.all_reduce(x, reduce_op(op), group=g, **how)


def broadcast(source=0, count=4):
    return lambda g, how: dist.broadcast(torch.ones(count), group_src=source, group=g, **how)


def reduce(to=0, op="SUM"):
    x = torch.ones(4)
    return lambda g, how: dist.reduce(x, group_dst=to, op=reduce_op(op), group=g, **how)


def gather(to=0, count=4):
    def call(g, how):
        outputs = [torch.ones(4) for _ in range(g.size())] if g.rank() == to else None
        return dist.gather(torch.ones(count), outputs, group_dst=to, group=g, **how)

    return call


def scatter(source=0, count=4):
    def call(g, how):
        inputs = [torch.ones(4) for _ in range(g.size())] if g.rank() == source else None
        return dist.scatter(torch.ones(count), inputs, group_src=source, group=g, **how)

    return call


def all_gather(counts):
    def call(g, how):
        outputs = [torch.ones(count) for count in counts]
        return dist.all_gather(outputs, torch.ones(counts[g.rank()]), group=g, **how)

    return call


def all_gather_single(count=4):
    return lambda g, how: dist.all_gather_single(
        torch.ones(count * g.size()), torch.ones(count), group=g, **how
    )


def reduce_scatter(count=4, op="SUM"):
    return lambda g, how: dist.reduce_scatter_single(
        torch.ones(count), torch.ones(count * g.size()), reduce_op(op), group=g, **how
    )


def reduce_scatter_of(counts):
    def call(g, how):
        inputs = [torch.ones(count) for count in counts]
        return dist.reduce_scatter(torch.ones(counts[g.rank()]), inputs, group=g, **how)

    return call


def all_to_all(count=4):
    """Sends `count` elements to every rank and expects four from every rank."""
    return lambda g, how: dist.all_to_all(
        [torch.ones(4) for _ in range(g.size())],
        [torch.ones(count) for _ in range(g.size())],
        group=g,
        **how,
    )


def all_to_all_single(count=4):
    return lambda g, how: dist.all_to_all_single(
        torch.ones(count * g.size()), torch.ones(count * g.size()), group=g, **how
    )


def coalesced(tensors=2):
    def call(g, how):
        reduction = options("AllreduceCoalesced", reduceOp=dist.ReduceOp.SUM)
        reduction.asyncOp = how["async_op"]
        return g.allreduce_coalesced([torch.ones(4) for _ in range(tensors)], reduction)

    return call


def barrier():
    return lambda g, how: dist.barrier(group=g, **how)


LARGE = 3_000_000
DISAGREEMENTS = {
    "operation": (all_reduce(), all_gather_single(), ["called allreduce(", "called allgather("]),
    "operation and barrier": (all_reduce(), barrier(), ["called allreduce(", "called barrier("]),
    "broadcast and reduce": (broadcast(), reduce(), ["called broadcast(", "called reduce("]),
    "count": (all_reduce(4), all_reduce(5), ["(count 4,", "(count 5,"]),
    "large count": (all_reduce(LARGE), all_reduce(5), [f"(count {LARGE},", "(count 5,"]),
    "no elements": (all_reduce(4), all_reduce(0), ["(count 4,", "(count 0,"]),
    "count of broadcast": (broadcast(0, 4), broadcast(0, 7), ["(count 4,", "(count 7,"]),
    "count of all_gather": (all_gather_single(3), all_gather_single(4), ["(count 3,", "(count 4,"]),
    "count of reduce_scatter": (reduce_scatter(3), reduce_scatter(4), ["(count 3,", "(count 4,"]),
    "count of all_to_all": (
        all_to_all_single(3),
        all_to_all_single(4),
        ["sends 12 bytes to rank 1, which expects 16"],
    ),
    "dtype": (all_reduce(), all_reduce(dtype=torch.int32), [", float32,", ", int32,"]),
    "dtype, other size": (
        all_reduce(),
        all_reduce(dtype=torch.float64),
        [", float32,", ", float64,"],
    ),
    "reduction": (all_reduce(), all_reduce(op="MAX"), [", sum,", ", max,"]),
    "reduction of reduce": (reduce(), reduce(op="PRODUCT"), [", sum,", ", product,"]),
    "reduction of reduce_scatter": (
        reduce_scatter(),
        reduce_scatter(op="MIN"),
        [", sum,", ", min,"],
    ),
    "root of broadcast": (broadcast(0), broadcast(1), [", root 0,", ", root 1,"]),
    "root of reduce": (reduce(0), reduce(1), [", root 0,", ", root 1,"]),
    "root of gather": (gather(0), gather(1), [", root 0,", ", root 1,"]),
    "root of scatter": (scatter(0), scatter(1), [", root 0,", ", root 1,"]),
    "block size of gather": (
        gather(0, 4),
        gather(0, 5),
        ["sends 20 bytes to rank 0, which expects 16"],
    ),
    "block size of scatter": (
        scatter(0, 4),
        scatter(0, 5),
        ["sends 16 bytes to rank 1, which expects 20"],
    ),
    "uneven all_gather": (
        all_gather([1, 2, 3]),
        all_gather([2, 2, 3]),
        ["called allgatherv(count 6 in all,", "called allgatherv(count 7 in all,"],
    ),
    "uneven reduce_scatter": (
        reduce_scatter_of([1, 2, 3]),
        reduce_scatter_of([2, 2, 3]),
        ["called reduce_scatterv(count 6 in all,", "called reduce_scatterv(count 7 in all,"],
    ),
    "uneven all_to_all": (
        all_to_all(4),
        all_to_all(5),
        ["sends 20 bytes to rank 0, which expects 16"],
    ),
    "number of coalesced tensors": (
        coalesced(2),
        coalesced(3),
        ["called allreduce(", "called barrier("],
    ),
}


def check_disagreement(group, odd: bool, name: str, asynchronous: bool) -> list[str]:
    """Returns the errors on this rank: that of the call or of the next collective, then that of
    each later call."""
    call = DISAGREEMENTS[name][odd]
    with pytest.raises(dist.DistBackendError) as caught:
        work = call(group, {"async_op": asynchronous})
        if asynchronous:
            work.wait()
        dist.barrier(group=group)  # a root may return before another rank detects the error
    messages = [str(caught.value)]
    peer = (group.rank() + 1) % group.size()
    send = lambda g, how: dist.send(torch.ones(1), group_dst=peer, group=g)  # noqa: E731
    for later in (all_reduce(), barrier(), broadcast(2), send):
        with pytest.raises(dist.DistBackendError) as caught:
            later(group, {"async_op": False})
        messages.append(str(caught.value))
    return messages


def check_disagreements(rank: int, size: int) -> dict[str, list[str]]:
    """Uses a new group for each disagreement, because the group fails."""
    messages = {}
    for name, asynchronous in itertools.product(DISAGREEMENTS, (False, True)):
        group = dist.new_group(list(range(size)))
        try:
            check_usable(group, size)
            errors = check_disagreement(group, rank == 1, name, asynchronous)
            check_usable(None, size)  # the world is not affected
        except BaseException as error:
            error.add_note(f"{name}, async {asynchronous}")
            raise
        messages.setdefault(name, []).extend(errors)
    return messages


@functools.cache
def messages_of_disagreements() -> list[dict[str, list[str]]]:
    return run_ranks(3, check_disagreements, bound_s=100)


@pytest.mark.xdist_group("disagreements")
@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreement(name):
    for message in itertools.chain(*(rank[name] for rank in messages_of_disagreements())):
        for mention in DISAGREEMENTS[name][2]:
            assert mention in message, f"no {mention!r} in: {message}"
        assert re.search(r"\brank 1\b", message), message
        assert re.search(r"\brank [02]\b", message), message


def check_message_size(rank: int, size: int, count: int) -> list[str]:
    """Rank 0 sends one element more than rank 1 expects; rank 2 takes no part."""
    group = dist.new_group(list(range(size)))
    messages = []
    with pytest.raises(dist.DistBackendError) as caught:
        if rank == 0:
            dist.send(torch.ones(count + 1), dst=1, group=group)
        elif rank == 1:
            dist.recv(torch.ones(count), src=0, group=group)
        dist.barrier(group=group)
    messages.append(str(caught.value))
    with pytest.raises(dist.DistBackendError) as caught:
        dist.barrier(group=group)
    messages.append(str(caught.value))
    check_usable(None, size)
    return messages


@pytest.mark.parametrize("count", [4, 1 << 20])
def test_message_of_another_size(count):
    for message in itertools.chain(*run_ranks(3, check_message_size, count)):
        assert f"rank 1 receives {4 * count} bytes" in message, message
        assert re.search(rf"\brank 0 .* sent {4 * count + 4}$", message.split("\n")[0]), message
