"""Every collective of torch, with its expected results.

A Case describes a call. It is determined by a seed, so all ranks know the tensors of every rank.
Exchange(case, rank, group) is the call on one rank: the constructor creates the tensors; issue(),
wait() and verify() are separate steps, so that several exchanges can be in flight.
"""

import contextlib
import random
import time
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import _coalescing_manager

from support.torch_layouts import Placed, layouts_of, room, showable
from support.torch_reference import KINDS, reduce_op, reduced, values_of

CPU = torch.device("cpu")
POLL_BOUND_S = 50


@dataclass(frozen=True)
class Case:
    seed: str  # of its values and layouts; names the case, too
    operation: str
    dtype: torch.dtype
    reduction: str | None
    size: int
    shape: tuple
    interface: str  # "dist": functions, "group": methods of the group, "backend": of the backend
    asynchronous: bool
    root: int
    flavour: str
    tag: int = 0

    def __str__(self):
        how = f"{'async' if self.asynchronous else 'sync'} by {self.interface}"
        name = str(self.dtype).removeprefix("torch.")
        what = f"{self.operation} {self.reduction or ''} {name}".replace("  ", " ")
        return f"{self.seed}: {what} {self.shape} {how} root {self.root} {self.flavour}"


def poll(work) -> None:
    """A caller that only polls sees the completion, and then the results are valid."""
    end = time.monotonic() + POLL_BOUND_S
    while not work.is_completed():
        assert time.monotonic() < end, "does not complete without wait()"
        time.sleep(0.0001)


WAYS_TO_WAIT = {
    "wait": lambda work: work.wait(),
    "poll": poll,
    "future": lambda work: work.get_future().wait(),
}


class Exchange:
    def __init__(self, case: Case, rank: int, group):
        self.case, self.rank, self.group = case, rank, group
        self.asynchronous = case.asynchronous
        self.size = case.size
        self.factors = [self.choice(f"factor {r}", self._factors()) for r in range(case.size)]
        self.op = reduce_op(case.reduction, self._factor()) if case.reduction else None
        self.layouts: dict[str, str] = {}
        self._checks, self._results, self._call, self._works = [], [], None, []
        OPERATIONS[case.operation].prepare(self)

    def issue(self) -> None:
        works = self._call()
        self._works = works if isinstance(works, list) else [works]

    def wait(self) -> None:
        """A synchronous call has completed when it returns."""
        wait = WAYS_TO_WAIT[self.choice(f"way to wait {self.rank}", list(WAYS_TO_WAIT))]
        for work in self._works:
            if work is not None and self.asynchronous:
                wait(work)
            assert work is None or work.is_completed(), "returned before it was complete"

    def verify(self) -> int:
        """A number that is equal on all ranks if the operation gives all of them the same bits."""
        for check in self._checks:
            check()
        if not OPERATIONS[self.case.operation].same_everywhere:
            return 0
        return zlib.crc32(b"".join(x.found().numpy().tobytes() for x in self._results))

    # ---- values that the seed determines

    def choice(self, what: str, choices: list):
        return random.Random(f"{self.case.seed}/{what}").choice(choices)

    def _factors(self) -> list[float]:
        integer = KINDS[self.case.dtype] == "integer"
        return [2.0, -3.0, 5.0, 1.0] if integer else [0.5, -2.0, 1 / 3, 1e3]

    def _factor(self):
        """This rank's own, as a number or as a tensor."""
        factor = self.factors[self.rank]
        return self.choice("kind of factor", [factor, torch.tensor(factor, dtype=torch.float64)])

    def layout(self, rank: int, role: str, shape) -> str:
        lazy, written = self.case.interface == "backend", not role.startswith("in")
        choices = layouts_of(shape, self.case.dtype, written=written, lazy=lazy)
        return self.choice(f"layout {rank} {role}", choices)

    def values(self, rank: int, role: str, shape) -> torch.Tensor:
        """A rank's tensor before the call; roles that start with "in" are only read."""
        generator = torch.Generator()
        generator.manual_seed(zlib.crc32(f"{self.case.seed}/{rank}/{role}".encode()))
        values = values_of(generator, tuple(shape), self.case.dtype, self.case.flavour)
        return showable(values, self.layout(rank, role, shape))

    def everyones(self, role: str, shape) -> list[torch.Tensor]:
        return [self.values(r, role, shape) for r in range(self.size)]

    def reduced(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return reduced(inputs, self.case.reduction, self.factors)

    # ---- tensors of this rank, and their expected contents

    def _place(self, role: str, shape, make) -> Placed:
        self.layouts[role] = self.layout(self.rank, role, shape)
        return make(self.layouts[role])

    def input(self, role: str, shape) -> torch.Tensor:
        values = self.values(self.rank, role, shape)
        placed = self._place(role, shape, lambda layout: Placed(values, layout))
        self._checks.append(placed.check_unchanged)
        return placed.tensor

    def changed(self, role: str, shape, expected: torch.Tensor) -> torch.Tensor:
        values = self.values(self.rank, role, shape)
        return self._expect(self._place(role, shape, lambda where: Placed(values, where)), expected)

    def output(self, role: str, shape, expected: torch.Tensor) -> torch.Tensor:
        dtype = self.case.dtype
        return self._expect(
            self._place(role, shape, lambda layout: room(shape, dtype, layout)), expected
        )

    def _expect(self, placed: Placed, expected: torch.Tensor) -> torch.Tensor:
        moved = self.case.reduction is None
        self._results.append(placed)
        self._checks.append(lambda: placed.check(expected, exactly=moved))
        return placed.tensor

    # ---- the call

    def call(self, function, method) -> None:
        """`function` is of torch.distributed; `method` takes the group or the backend."""
        if self.case.interface == "dist":
            self._call = function
        elif self.case.interface == "group":
            self._call = lambda: method(self.group)
        else:
            self._call = lambda: method(self.group._get_backend(CPU))

    def options(self, kind: str, **fields):
        options = getattr(c10d, kind + "Options")()
        options.asyncOp = self.asynchronous
        for name, value in fields.items():
            setattr(options, name, value)
        return options

    @property
    def how(self) -> dict:
        return {"group": self.group, "async_op": self.asynchronous}

    @contextlib.contextmanager
    def coalesced(self, works: list):
        with _coalescing_manager(self.group, async_ops=self.asynchronous) as manager:
            yield
        works += manager.works


# ---- shapes


def uneven_shapes(x: Exchange, what: str) -> list[tuple]:
    """One per rank; some are empty, all have the dimensions of the case's shape."""
    tail = x.case.shape[1:]
    return [(x.choice(f"rows {what} {r}", [0, 1, 2, 3, 7]), *tail) for r in range(x.size)]


def rows_between(x: Exchange) -> list[list[int]]:
    """rows_between(x)[a][b]: how many rows rank a sends to rank b."""
    return [[shape[0] for shape in uneven_shapes(x, f"from {r}")] for r in range(x.size)]


def shape_of_all(x: Exchange, role: str) -> tuple:
    """Stacked, concatenated or flat: only the number of elements matters."""
    shape, n = x.case.shape, x.size
    shapes = [(n, *shape), (n * torch.Size(shape).numel(),)]
    if shape:
        shapes.append((n * shape[0], *shape[1:]))
    return x.choice(f"shape of {role}", shapes)


def coalesced_shapes(x: Exchange) -> list[tuple]:
    return [x.case.shape, (5,), (2, 3)]


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


# ---- point to point: around a ring, with one rank to itself


def ring(x: Exchange) -> tuple:
    to, source = (x.rank + 1) % x.size, (x.rank - 1) % x.size
    outgoing = x.input("in", x.case.shape)
    incoming = x.output("out", x.case.shape, x.values(source, "in", x.case.shape))
    return outgoing, to, incoming, source


def send_recv(x: Exchange) -> None:
    outgoing, to, incoming, source = ring(x)
    more = {"group": x.group, "tag": x.case.tag}

    def blocking():
        """Rank 0 sends first, all others receive first."""
        steps = [
            lambda: dist.send(outgoing, group_dst=to, **more),
            lambda: dist.recv(incoming, group_src=source, **more),
        ]
        for step in steps if x.rank == 0 else steps[::-1]:
            step()

    def function():
        if not x.asynchronous and x.size > 1:
            return blocking()
        return waited(
            x,
            dist.isend(outgoing, group_dst=to, **more),
            dist.irecv(incoming, group_src=source, **more),
        )

    x.call(
        function,
        lambda by: waited(
            x, by.recv([incoming], source, x.case.tag), by.send([outgoing], to, x.case.tag)
        ),
    )


def waited(x: Exchange, *works) -> list:
    """Point-to-point calls have no `asyncOp`: a synchronous case waits."""
    for work in works:
        if not x.asynchronous:
            work.wait()
    return list(works)


def recv_any_source(x: Exchange) -> None:
    outgoing, to, incoming, source = ring(x)
    more = {"group": x.group, "tag": x.case.tag}

    def check_source(received):
        assert received._source_rank() == source, f"came from {received._source_rank()}"

    def remember(received, sent):
        x._checks.append(lambda: check_source(received))
        return waited(x, received, sent)

    x.call(
        lambda: remember(dist.irecv(incoming, **more), dist.isend(outgoing, group_dst=to, **more)),
        lambda by: remember(
            by.recv_anysource([incoming], x.case.tag), by.send([outgoing], to, x.case.tag)
        ),
    )


def batch_send_recv(x: Exchange) -> None:
    outgoing, to, incoming, source = ring(x)
    more = {"group": x.group, "tag": x.case.tag}

    def function():
        batch = [
            dist.P2POp(dist.isend, outgoing, group_peer=to, **more),
            dist.P2POp(dist.irecv, incoming, group_peer=source, **more),
        ]
        return waited(x, *dist.batch_isend_irecv(batch))

    x.call(function, None)


# ---- several at once


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


# ---- the table


@dataclass(frozen=True)
class Operation:
    prepare: callable
    reduces: bool = False
    same_everywhere: bool = False  # all ranks must end with the same bits
    interfaces: tuple = ("dist", "group", "backend")


OPERATIONS = {
    "all_reduce": Operation(all_reduce, reduces=True, same_everywhere=True),
    "broadcast": Operation(broadcast, same_everywhere=True),
    "reduce": Operation(reduce, reduces=True),
    "all_gather": Operation(all_gather, same_everywhere=True),
    "all_gather uneven": Operation(all_gather_uneven, same_everywhere=True),
    "all_gather_single": Operation(all_gather_single, same_everywhere=True),
    "all_gather_single in place": Operation(all_gather_single_in_place, same_everywhere=True),
    "gather": Operation(gather),
    "gather uneven": Operation(gather_uneven),
    "scatter": Operation(scatter),
    "scatter uneven": Operation(scatter_uneven),
    "reduce_scatter": Operation(reduce_scatter, reduces=True),
    "reduce_scatter uneven": Operation(reduce_scatter_uneven, reduces=True),
    "reduce_scatter_single": Operation(reduce_scatter_single, reduces=True),
    "reduce_scatter_single in place": Operation(reduce_scatter_single_in_place, reduces=True),
    "all_to_all": Operation(all_to_all),
    "all_to_all uneven": Operation(all_to_all_uneven),
    "all_to_all_single": Operation(all_to_all_single),
    "all_to_all_single uneven": Operation(all_to_all_single_uneven),
    "send_recv": Operation(send_recv),
    "recv_any_source": Operation(recv_any_source),
    "batch_send_recv": Operation(batch_send_recv, interfaces=("dist",)),
    "all_reduce coalesced": Operation(all_reduce_coalesced, reduces=True, same_everywhere=True),
    "all_gather coalesced": Operation(
        all_gather_coalesced, same_everywhere=True, interfaces=("group", "backend")
    ),
    "all_gather_single coalesced": Operation(
        all_gather_single_coalesced, same_everywhere=True, interfaces=("dist", "group")
    ),
    "reduce_scatter_single coalesced": Operation(
        reduce_scatter_single_coalesced, reduces=True, interfaces=("dist", "group")
    ),
}


def interfaces_of(operation: str, dtype: torch.dtype, reduction: str | None) -> list[str]:
    """torch.distributed refuses products of complex numbers, which it views as pairs."""
    interfaces = list(OPERATIONS[operation].interfaces)
    if dtype.is_complex and reduction == "PRODUCT" and "dist" in interfaces:
        interfaces.remove("dist")
    return interfaces
