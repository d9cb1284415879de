"""Prepares send and recv on an Exchange: around a ring; with one rank, to itself."""

import torch.distributed as dist

from support.torch_exchange import Exchange


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
    """Waits in a synchronous case: point-to-point calls have no `asyncOp`."""
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
        x.add_check(lambda: check_source(received))
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
