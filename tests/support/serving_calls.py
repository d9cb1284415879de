"""The calls that vLLM and SGLang make of torch.distributed on CPUs, as docs/serving.md lists them.

serve() runs on each rank, in a process that uses the backend name "gloo" throughout. Each function
below checks its results; serve() checks that the group is ours and that ccl ran an operation.
"""

import pickle
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from support.ccl_usage import CPU, check_sum, is_ours, served_by_ccl

SIZE = 2
HALF_A_MINUTE = timedelta(seconds=30)


def serve(rank: int, store_port: int, tcp_port: int) -> None:
    store = dist.TCPStore("127.0.0.1", store_port, SIZE, is_master=rank == 0)
    with served_by_ccl():
        without_a_group(rank, store)
    address = f"tcp://127.0.0.1:{tcp_port}"
    run(CALLS, rank, init_method=address, timeout=None, pg_options=None)
    again = dist.PrefixStore("again", store)
    run([objects], rank, store=again, timeout=HALF_A_MINUTE)


def run(calls, rank: int, **options) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=SIZE, **options)
    assert is_ours(dist.group.WORLD)
    for call in calls:
        with served_by_ccl():
            call(rank)
    dist.destroy_process_group()


# ---- groups


def without_a_group(rank, store):
    """vLLM's init_gloo_process_group makes a group for agreement between data-parallel ranks."""
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    assert not dist.is_initialized()
    prefix = dist.PrefixStore("stateless", store)
    group = dist.ProcessGroup(prefix, rank, SIZE)
    backend = ProcessGroupGloo(prefix, rank, SIZE, timeout=HALF_A_MINUTE)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    backend._set_sequence_number_for_group()
    group._register_backend(CPU, dist.ProcessGroup.BackendType.GLOO, backend)
    assert is_ours(group) and isinstance(backend, ProcessGroupGloo)
    unfinished = torch.tensor([rank], dtype=torch.int32)
    dist.all_reduce(unfinished, op=dist.ReduceOp.MAX, group=group)
    assert unfinished.item() == SIZE - 1
    dist.barrier(group=group)
    group.shutdown()


def groups(rank):
    """Both make many groups, also of one rank, with the backend name of the default group."""
    backend = dist.get_backend(dist.group.WORLD)
    assert backend == "gloo" and backend != "nccl"
    for name in ("tp", "pp", "dp"):
        group = dist.new_group([0, 1], timeout=HALF_A_MINUTE, backend=backend, group_desc=name)
        assert is_ours(group) and isinstance(group._get_backend(CPU), dist.ProcessGroupGloo)
        check_sum(group, SIZE)
    alone = [dist.new_group([r], backend="gloo") for r in range(SIZE)][rank]
    assert is_ours(alone)
    check_sum(alone, 1)


def custom_group(rank):
    """SGLang's init_custom_process_group makes a group besides the world."""
    store = dist.PrefixStore("beside", c10d._get_default_store())
    group, _ = c10d._new_process_group_helper(
        SIZE,
        rank,
        [],
        dist.Backend("gloo"),
        store,
        group_name="beside",
        backend_options=None,
        timeout=HALF_A_MINUTE,
        device_id=None,
    )
    c10d._world.pg_group_ranks[group] = {i: i for i in range(SIZE)}
    assert is_ours(group)
    check_sum(group, SIZE)


# ---- the control plane


def agreement(rank):
    expected = {dist.ReduceOp.SUM: [1, 14], dist.ReduceOp.MIN: [0, 7], dist.ReduceOp.MAX: [1, 7]}
    for dtype in (torch.int32, torch.int64):
        for op, result in expected.items():
            sizes = torch.tensor([rank, 7], dtype=dtype)
            dist.all_reduce(sizes, op=op)
            assert sizes.tolist() == result, (dtype, op)
            sizes = torch.tensor([rank, 7], dtype=dtype)
            work = dist.all_reduce(sizes, op=op, async_op=True)
            assert work.wait(timeout=timedelta(minutes=5))
            assert sizes.tolist() == result, (dtype, op)
    dist.monitored_barrier(timeout=HALF_A_MINUTE)


def objects(rank):
    names = [None] * SIZE
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {r}" for r in range(SIZE)]
    box = [{"request": 1} if rank == 0 else None]
    dist.broadcast_object_list(box, src=0, device="cpu")
    assert box == [{"request": 1}]
    gathered = [None] * SIZE if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered == (list(range(SIZE)) if rank == 0 else None)


def size_and_bytes(rank):
    """SGLang calls broadcast_pyobj in its scheduler's loop; the sent memory is read-only."""
    request = {"tokens": [1, 2, 3]}
    payload = pickle.dumps(request) if rank == 0 else b""
    length = torch.tensor([len(payload)], dtype=torch.int64)
    dist.broadcast(length, src=0)
    data = torch.empty(int(length), dtype=torch.uint8)
    if rank == 0:
        data = torch.frombuffer(payload, dtype=torch.uint8)
    dist.broadcast(data, src=0)
    assert pickle.loads(data.numpy().tobytes()) == request
    several = [torch.full((3,), float(rank)) for _ in range(4)]
    for work in [dist.broadcast(tensor, src=0, async_op=True) for tensor in several]:
        work.wait()
    assert all(tensor.tolist() == [0] * 3 for tensor in several)


# ---- messages


def messages(rank):
    """Ranks send the bytes of a pickled object; recv() returns the rank of the sender."""
    payload = pickle.dumps({"tokens": [1, 2, 3]})
    length = torch.tensor([len(payload)])
    if rank == 0:
        dist.send(length, dst=1)
        dist.send(torch.frombuffer(payload, dtype=torch.uint8), dst=1)
        dist.isend(torch.ones(2), group_dst=1, tag=0x46785363).wait()
    else:
        assert dist.recv(length, src=0) == 0
        received = torch.empty(int(length), dtype=torch.uint8)
        assert dist.recv(received, src=0) == 0
        assert pickle.loads(received.numpy().tobytes()) == {"tokens": [1, 2, 3]}
        tensor = torch.zeros(2)
        dist.recv(tensor, group_src=0, tag=0x46785363)
        assert tensor.tolist() == [1, 1]
    out, into = torch.full((3,), float(rank)), torch.empty(3)
    pairs = [dist.P2POp(dist.isend, out, 1 - rank), dist.P2POp(dist.irecv, into, 1 - rank)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    assert into.tolist() == [1 - rank] * 3


def send_with_timeout(rank):
    """A wait that times out raises; the message and the group stay valid."""
    big = torch.ones(1 << 20)
    if rank == 0:
        work = dist.isend(big, dst=1)
        with pytest.raises(RuntimeError):
            work.wait(timedelta(milliseconds=1))
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        received = torch.empty_like(big)
        dist.irecv(received, src=0).wait()
        assert torch.equal(received, big)


# ---- tensors of models


@torch.inference_mode()
def tensors(rank):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        hidden = torch.full((4, 8), 1.0, dtype=dtype)
        dist.all_reduce(hidden)
        assert (hidden == SIZE).all()
        whole = torch.empty(SIZE * 4, dtype=dtype)
        dist.all_gather_into_tensor(whole, torch.full((4,), float(rank), dtype=dtype))
        assert whole.tolist() == [r for r in range(SIZE) for _ in range(4)]
        part = torch.empty(4, dtype=dtype)
        dist.reduce_scatter_tensor(part, torch.arange(SIZE * 4, dtype=dtype))
        assert part.tolist() == [SIZE * (rank * 4 + i) for i in range(4)]
        parts = [torch.empty(2, dtype=dtype) for _ in range(SIZE)] if rank == 0 else None
        dist.gather(torch.full((2,), float(rank), dtype=dtype), parts, dst=0)
        assert not parts or [p.tolist() for p in parts] == [[r, r] for r in range(SIZE)]


CALLS = (
    groups,
    custom_group,
    agreement,
    objects,
    size_and_bytes,
    messages,
    send_with_timeout,
    tensors,
)
