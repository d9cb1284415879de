"""Prepares coalesced collectives on an Exchange: several tensors in one call."""

import torch
import torch.distributed as dist

from support.torch_exchange import Exchange


def coalesced_shapes(x: Exchange) -> list[tuple]:
    return [x.case.shape, (5,), (2, 3)]


def all_reduce_coalesced(x: Exchange) -> None:
    tensors = [
        x.changed(f"x {i}", shape, x.reduced(x.everyones(f"x {i}", shape)))
        for i, shape in enumerate(coalesced_shapes(x))
    ]

    def function():
        works = []
        with x.coalesced(works):
            for tensor in tensors:
                dist.all_reduce(tensor, x.op, group=x.group)
        return works

    x.call(
        function,
        lambda to: to.allreduce_coalesced(tensors, x.options("AllreduceCoalesced", reduceOp=x.op)),
    )


def all_gather_coalesced(x: Exchange) -> None:
    shapes = coalesced_shapes(x)
    tensors = [x.input(f"in {i}", shape) for i, shape in enumerate(shapes)]
    outputs = [
        [
            x.output(f"out {r} {i}", shape, x.values(r, f"in {i}", shape))
            for i, shape in enumerate(shapes)
        ]
        for r in range(x.size)
    ]
    x.call(None, lambda to: to.allgather_coalesced(outputs, tensors, x.options("Allgather")))


def all_gather_single_coalesced(x: Exchange) -> None:
    shapes = coalesced_shapes(x)
    tensors = [x.input(f"in {i}", shape) for i, shape in enumerate(shapes)]
    outputs = [
        x.output(f"out {i}", (x.size, *shape), torch.stack(x.everyones(f"in {i}", shape)))
        for i, shape in enumerate(shapes)
    ]

    def function():
        works = []
        with x.coalesced(works):
            for output, tensor in zip(outputs, tensors, strict=True):
                dist.all_gather_single(output, tensor, group=x.group)
        return works

    x.call(
        function,
        lambda to: to.allgather_into_tensor_coalesced(outputs, tensors, x.options("Allgather")),
    )


def reduce_scatter_single_coalesced(x: Exchange) -> None:
    shapes = coalesced_shapes(x)
    tensors = [x.input(f"in {i}", (x.size, *shape)) for i, shape in enumerate(shapes)]
    outputs = [
        x.output(
            f"out {i}",
            shape,
            x.reduced([v[x.rank] for v in x.everyones(f"in {i}", (x.size, *shape))]),
        )
        for i, shape in enumerate(shapes)
    ]

    def function():
        works = []
        with x.coalesced(works):
            for output, tensor in zip(outputs, tensors, strict=True):
                dist.reduce_scatter_single(output, tensor, x.op, group=x.group)
        return works

    x.call(
        function,
        lambda to: to.reduce_scatter_tensor_coalesced(
            outputs, tensors, x.options("ReduceScatter", reduceOp=x.op)
        ),
    )
