"""Prepares each collective of torch on an Exchange: its tensors, expected results and call."""

import torch
import torch.distributed as dist

from support.torch_exchange import Exchange

# ---- shapes


def uneven_shapes(x: Exchange, what: str) -> list[tuple]:
    """Returns one shape per rank; some are empty, all have the dimensions of the case's shape."""
    tail = x.case.shape[1:]
    return [(x.choice(f"rows {what} {r}", [0, 1, 2, 3, 7]), *tail) for r in range(x.size)]


def rows_between(x: Exchange) -> list[list[int]]:
    """rows_between(x)[a][b] is the number of rows that rank a sends to rank b."""
    return [[shape[0] for shape in uneven_shapes(x, f"from {r}")] for r in range(x.size)]


def shape_of_all(x: Exchange, role: str) -> tuple:
    """Returns a stacked, concatenated or flat shape: only the number of elements matters."""
    shape, n = x.case.shape, x.size
    shapes = [(n, *shape), (n * torch.Size(shape).numel(),)]
    if shape:
        shapes.append((n * shape[0], *shape[1:]))
    return x.choice(f"shape of {role}", shapes)


# ---- the collectives


def all_reduce(x: Exchange) -> None:
    shape = x.case.shape
    tensor = x.changed("x", shape, x.reduced(x.everyones("x", shape)))
    x.call(
        lambda: dist.all_reduce(tensor, x.op, **x.how),
        lambda to: to.allreduce([tensor], x.options("Allreduce", reduceOp=x.op)),
    )


def broadcast(x: Exchange) -> None:
    shape, root = x.case.shape, x.case.root
    tensor = x.changed("x", shape, x.values(root, "x", shape))
    x.call(
        lambda: dist.broadcast(tensor, group_src=root, **x.how),
        lambda to: to.broadcast([tensor], x.options("Broadcast", rootRank=root, rootTensor=0)),
    )


def reduce(x: Exchange) -> None:
    shape, root = x.case.shape, x.case.root
    everyones = x.everyones("x", shape)
    expected = x.reduced(everyones) if x.rank == root else everyones[x.rank]
    tensor = x.changed("x", shape, expected)
    fields = {"reduceOp": x.op, "rootRank": root, "rootTensor": 0}
    x.call(
        lambda: dist.reduce(tensor, group_dst=root, op=x.op, **x.how),
        lambda to: to.reduce([tensor], x.options("Reduce", **fields)),
    )


def all_gather_of(x: Exchange, shapes: list[tuple]) -> None:
    tensor = x.input("in", shapes[x.rank])
    outputs = [
        x.output(f"out {r}", shape, x.values(r, "in", shape)) for r, shape in enumerate(shapes)
    ]
    x.call(
        lambda: dist.all_gather(outputs, tensor, **x.how),
        lambda to: to.allgather([outputs], [tensor], x.options("Allgather")),
    )


def all_gather(x: Exchange) -> None:
    all_gather_of(x, [x.case.shape] * x.size)


def all_gather_uneven(x: Exchange) -> None:
    all_gather_of(x, uneven_shapes(x, "all"))


def all_gather_single(x: Exchange) -> None:
    shape, whole = x.case.shape, shape_of_all(x, "out")
    tensor = x.input("in", shape)
    output = x.output("out", whole, torch.stack(x.everyones("in", shape)).reshape(whole))
    names = [dist.all_gather_single, dist.all_gather_into_tensor]
    x.call(
        lambda: x.choice("name", names)(output, tensor, **x.how),
        lambda to: to._allgather_base(output, tensor, x.options("Allgather")),
    )


def all_gather_single_in_place(x: Exchange) -> None:
    """The input is this rank's part of the output."""
    shape = (x.size, *x.case.shape)
    own = [values[r] for r, values in enumerate(x.everyones("x", shape))]
    output = x.changed("x", shape, torch.stack(own))
    x.call(
        lambda: dist.all_gather_single(output, output[x.rank], **x.how),
        lambda to: to._allgather_base(output, output[x.rank], x.options("Allgather")),
    )


def gather_of(x: Exchange, shapes: list[tuple]) -> None:
    root = x.case.root
    tensor = x.input("in", shapes[x.rank])
    outputs = [
        x.output(f"out {r}", shape, x.values(r, "in", shape))
        for r, shape in enumerate(shapes)
        if x.rank == root
    ]
    x.call(
        lambda: dist.gather(tensor, outputs or None, group_dst=root, **x.how),
        lambda to: to.gather(
            [outputs] if outputs else [], [tensor], x.options("Gather", rootRank=root)
        ),
    )


def gather(x: Exchange) -> None:
    gather_of(x, [x.case.shape] * x.size)


def gather_uneven(x: Exchange) -> None:
    gather_of(x, uneven_shapes(x, "all"))


def scatter_of(x: Exchange, shapes: list[tuple]) -> None:
    root, own = x.case.root, shapes[x.rank]
    inputs = [x.input(f"in {r}", shape) for r, shape in enumerate(shapes) if x.rank == root]
    tensor = x.output("out", own, x.values(root, f"in {x.rank}", own))
    x.call(
        lambda: dist.scatter(tensor, inputs or None, group_src=root, **x.how),
        lambda to: to.scatter(
            [tensor], [inputs] if inputs else [], x.options("Scatter", rootRank=root)
        ),
    )


def scatter(x: Exchange) -> None:
    scatter_of(x, [x.case.shape] * x.size)


def scatter_uneven(x: Exchange) -> None:
    scatter_of(x, uneven_shapes(x, "all"))


def reduce_scatter_of(x: Exchange, shapes: list[tuple]) -> None:
    inputs = [x.input(f"in {r}", shape) for r, shape in enumerate(shapes)]
    mine = x.everyones(f"in {x.rank}", shapes[x.rank])
    output = x.output("out", shapes[x.rank], x.reduced(mine))
    x.call(
        lambda: dist.reduce_scatter(output, inputs, x.op, **x.how),
        lambda to: to.reduce_scatter([output], [inputs], x.options("ReduceScatter", reduceOp=x.op)),
    )


def reduce_scatter(x: Exchange) -> None:
    reduce_scatter_of(x, [x.case.shape] * x.size)


def reduce_scatter_uneven(x: Exchange) -> None:
    reduce_scatter_of(x, uneven_shapes(x, "all"))


def reduce_scatter_single(x: Exchange) -> None:
    shape, whole = x.case.shape, shape_of_all(x, "in")
    tensor = x.input("in", whole)
    mine = [values.reshape(x.size, -1)[x.rank] for values in x.everyones("in", whole)]
    if torch.Size(shape).numel() == 0:
        mine = [torch.empty(shape, dtype=x.case.dtype)] * x.size
    output = x.output("out", shape, x.reduced(mine).reshape(shape))
    names = [dist.reduce_scatter_single, dist.reduce_scatter_tensor]
    x.call(
        lambda: x.choice("name", names)(output, tensor, x.op, **x.how),
        lambda to: to._reduce_scatter_base(
            output, tensor, x.options("ReduceScatter", reduceOp=x.op)
        ),
    )


def reduce_scatter_single_in_place(x: Exchange) -> None:
    """The output is this rank's part of the input; the rest of the input is not changed."""
    shape = (x.size, *x.case.shape)
    everyones = x.everyones("x", shape)
    expected = everyones[x.rank].clone()
    expected[x.rank] = x.reduced([values[x.rank] for values in everyones])
    tensor = x.changed("x", shape, expected)
    x.call(
        lambda: dist.reduce_scatter_single(tensor[x.rank], tensor, x.op, **x.how),
        lambda to: to._reduce_scatter_base(
            tensor[x.rank], tensor, x.options("ReduceScatter", reduceOp=x.op)
        ),
    )


def all_to_all_of(x: Exchange, shapes: list[list[tuple]]) -> None:
    """shapes[a][b] is what rank a sends to rank b."""
    me = x.rank
    inputs = [x.input(f"in {r}", shapes[me][r]) for r in range(x.size)]
    outputs = [
        x.output(f"out {r}", shapes[r][me], x.values(r, f"in {me}", shapes[r][me]))
        for r in range(x.size)
    ]
    x.call(
        lambda: dist.all_to_all(outputs, inputs, **x.how),
        lambda to: to.alltoall(outputs, inputs, x.options("AllToAll")),
    )


def all_to_all(x: Exchange) -> None:
    all_to_all_of(x, [[x.case.shape] * x.size] * x.size)


def all_to_all_uneven(x: Exchange) -> None:
    all_to_all_of(x, [uneven_shapes(x, f"from {r}") for r in range(x.size)])


def all_to_all_single_of(x: Exchange, rows: list[list[int]], splits: tuple) -> None:
    """Without splits, torch divides the first dimension into equal parts."""
    tail = x.case.shape[1:]
    parts = [x.values(r, "in", (sum(rows[r]), *tail)).split(rows[r])[x.rank] for r in range(x.size)]
    tensor = x.input("in", (sum(rows[x.rank]), *tail))
    received = torch.cat([p.contiguous().view(torch.uint8).reshape(-1) for p in parts])
    shape = (sum(rows[r][x.rank] for r in range(x.size)), *tail)
    output = x.output("out", shape, received.view(x.case.dtype).reshape(shape))
    x.call(
        lambda: dist.all_to_all_single(output, tensor, *splits, **x.how),
        lambda to: to.alltoall_base(output, tensor, *splits, x.options("AllToAll")),
    )


def all_to_all_single(x: Exchange) -> None:
    rows = x.case.shape[0] if x.case.shape else 1
    all_to_all_single_of(x, [[rows] * x.size] * x.size, ([], []))


def all_to_all_single_uneven(x: Exchange) -> None:
    rows = rows_between(x)
    splits = ([rows[r][x.rank] for r in range(x.size)], rows[x.rank])
    all_to_all_single_of(x, rows, splits)
