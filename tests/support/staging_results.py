"""Results of staging: order with streams, chunks, messages, training."""

import os

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

from support.staging_ranks import CHECKS, SUM, check, delayed, device_of, fails, refused

# ---- order with the device's streams


@check
def waits_for_what_was_there(rank, size):
    tensor = delayed(rank)
    dist.all_reduce(tensor)
    assert (tensor.cpu() == SUM).all()


@check
def a_missing_wait_of_the_stream_would_show(rank, size):
    sum_is_wrong_with(torch.standin.ignore_waits, rank)


@check
def a_missing_wait_of_the_host_would_show(rank, size):
    sum_is_wrong_with(torch.standin.ignore_host_waits, rank)


def sum_is_wrong_with(switch, rank):
    switch(True)
    tensor = delayed(rank, delay_ms=1000)  # long enough for a loaded host
    dist.all_reduce(tensor)
    switch(False)
    torch.standin.synchronize(rank)
    assert (tensor.cpu() != SUM).any()


@check
def current_stream_is_the_callers(rank, size):
    side = torch.Stream(device=device_of(rank))
    with side:
        tensor = delayed(rank)
        dist.all_reduce(tensor)
    assert (tensor.cpu() == SUM).all()


@check
def results_are_there_for_every_stream(rank, size):
    tensor = delayed(rank)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    with torch.Stream(device=device_of(rank)):
        copy = tensor.clone()
        assert (copy.cpu() == SUM).all()


@check
def earlier_reads_see_the_old_contents(rank, size):
    """A copy that was enqueued before the call reads the contents before the call."""
    target = torch.full((1000,), -1.0, device=device_of(rank))
    new = torch.ones(1000, device=device_of(rank))
    saved = torch.empty_like(target)
    torch.standin.synchronize(rank)
    dist.barrier()
    if rank == 1:
        torch.standin.set_delay_ms(500)
        saved.copy_(target, non_blocking=True)
        torch.standin.set_delay_ms(0)
    dist.broadcast(target if rank else new, src=0)
    torch.standin.synchronize(rank)
    assert rank == 0 or ((saved.cpu() == -1).all() and (target.cpu() == 1).all())


@check
def memory_is_kept_until_it_was_used(rank, size):
    works = [dist.all_reduce(delayed(rank, delay_ms=2), async_op=True) for _ in range(20)]
    others = [torch.full((1000,), -5.0, device=device_of(rank)) for _ in range(20)]
    results = [work.result()[0] for work in works]
    for work in works:
        work.wait()
    assert all((x.cpu() == SUM).all() for x in results)
    assert all((x.cpu() == -5).all() for x in others)
    assert torch.standin.torn_copies() == 0


# ---- chunks


def small_pieces(rank):
    os.environ["CCL_STAGING_BYTES"] = "4096"


@check
def pieces_make_the_whole(rank, size):
    device, n = device_of(rank), 5003
    own = torch.arange(n, dtype=torch.float32) + 1000 * rank
    both = [torch.arange(n, dtype=torch.float32) + 1000 * r for r in range(size)]
    reduced = own.to(device)
    dist.all_reduce(reduced)
    assert torch.equal(reduced.cpu(), both[0] + both[1])
    rooted = own.to(device)
    dist.reduce(rooted, dst=1)
    assert torch.equal(rooted.cpu(), both[0] + both[1] if rank == 1 else own)
    spread = own.to(device)
    dist.broadcast(spread, src=1)
    assert torch.equal(spread.cpu(), both[1])
    whole = torch.empty(size * n, device=device)
    dist.all_gather_single(whole, own.to(device))
    assert torch.equal(whole.cpu(), torch.cat(both))
    part = torch.empty(n, device=device)
    dist.reduce_scatter_single(part, torch.cat(both).to(device))
    assert torch.equal(part.cpu(), size * both[rank])
    lengths = [n, 17]
    parts = [torch.empty(length, device=device) for length in lengths]
    dist.all_gather(parts, own[: lengths[rank]].to(device))
    assert all(torch.equal(parts[r].cpu(), both[r][: lengths[r]]) for r in range(size))
    mine = torch.empty(lengths[rank], device=device)
    dist.reduce_scatter(mine, [own[:length].to(device) for length in lengths])
    assert torch.equal(mine.cpu(), (both[0] + both[1])[: lengths[rank]])


@check
def overlapping_tensors_in_pieces(rank, size):
    """The output is inside of the input, at an odd offset."""
    n = 6000
    memory = torch.arange(size * n + 7, dtype=torch.float32)
    expected = size * memory[: size * n].reshape(size, n)[rank]
    memory = memory.to(device_of(rank))
    torch.standin.set_delay_ms(1)
    dist.reduce_scatter_single(memory[7 : n + 7], memory[: size * n])
    assert torch.equal(memory[7 : n + 7].cpu(), expected)


@check
def copies_of_pieces_overlap(rank, size):
    """Copies to the host and copies to the device run on two streams."""
    tensor = torch.ones(10 * 1024, device=device_of(rank))
    dist.barrier()  # the group's first operation takes longer, and one rank may be late
    torch.standin.synchronize(rank)
    torch.standin.set_delay_ms(100)  # ten copies to the host take 1 s: also a loaded host overlaps
    before = torch.standin.simultaneous_copies()
    dist.all_reduce(tensor)
    assert torch.standin.simultaneous_copies() - before >= 5
    assert (tensor.cpu() == size).all()


@check
def pieces_of_other_wholes_are_a_mismatch(rank, size):
    """Different sizes are detected although the first chunks are equal."""
    with fails(
        "chunk 1 of a staged collective (in all: 2048 elements)",
        "chunk 1 of a staged collective (in all: 3072 elements)",
        within_s=20,
    ):
        dist.all_reduce(torch.ones(1024 * (rank + 2), device=device_of(rank)))


@check
def transposed_tensors_in_pieces(rank, size):
    square = torch.arange(90_000, dtype=torch.float32).reshape(300, 300)
    tensor = square.to(device_of(rank)).t()
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), 2 * square.t())


PREPARE = {name: small_pieces for name in CHECKS if "pieces" in name}


# ---- works, futures, messages


@check
def futures_and_their_callbacks(rank, size):
    future = dist.all_reduce(delayed(rank), async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert (doubled.wait().cpu() == 2 * SUM).all()


@check
def messages(rank, size):
    peer = 1 - rank
    received = torch.zeros(1000, device=device_of(rank))
    if rank == 0:
        dist.send(delayed(rank), dst=1)
        assert dist.recv(received) == 1
    else:
        assert dist.recv(received, src=0) == 0
        dist.send(delayed(rank), dst=0)
    assert (received.cpu() == peer + 1).all()
    into = torch.zeros(1000, device=device_of(rank))
    pairs = [
        dist.P2POp(dist.isend, delayed(rank), peer),
        dist.P2POp(dist.irecv, into, peer),
    ]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    assert (into.cpu() == peer + 1).all()


@check
def collectives_see_what_those_before_them_wrote(rank, size):
    tensor = delayed(rank)
    works = [dist.broadcast(tensor, src=1, async_op=True)]
    works += [dist.all_reduce(tensor, async_op=True) for _ in range(2)]
    for work in works:
        work.wait()
    assert (tensor.cpu() == 2 * size * size).all()


@check
def one_tensor_twice_in_a_call(rank, size):
    tensor = delayed(rank)
    dist.all_reduce_coalesced([tensor, tensor[10:]])
    assert (tensor[:10].cpu() == SUM).all() and (tensor[10:].cpu() == size * SUM).all()


@check
def futures_of_batches_know_the_device(rank, size):
    """The results of a callback are delayed, on another stream."""
    one, two = delayed(rank), delayed(rank)
    with _coalescing_manager(device=torch.device(device_of(rank)), async_ops=True) as manager:
        dist.broadcast(one, src=1)
        dist.all_reduce(two)
    (batch,) = manager.works

    def late_double(future):
        torch.standin.set_delay_ms(50)
        doubled = future.value()[1] * 2
        torch.standin.set_delay_ms(0)
        return doubled

    doubled = batch.get_future().then(late_double).wait()
    assert (doubled.cpu() == 2 * SUM).all() and (one.cpu() == 2).all()


@check
def batches(rank, size):
    tensors = [delayed(rank, delay_ms=1) for _ in range(3)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all((tensor.cpu() == SUM).all() for tensor in tensors)


@check
def inference_tensors(rank, size):
    with torch.inference_mode():
        tensor = delayed(rank)
        dist.all_reduce(tensor)
        assert (tensor.cpu() == SUM).all()


@check
def several_at_once(rank, size):
    tensors = [delayed(rank, delay_ms=1) for _ in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    on_cpu = torch.ones(100)
    dist.all_reduce(on_cpu)
    for work in works:
        work.wait()
    assert (on_cpu == size).all() and all((t.cpu() == SUM).all() for t in tensors)


@check
def objects(rank, size):
    everyones = [None] * size
    dist.all_gather_object(everyones, {"rank": rank})
    assert everyones == [{"rank": r} for r in range(size)]
    box = [torch.full((3,), 7.0, device=device_of(rank)) if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    assert box[0].device.type == "standin" and (box[0].cpu() == 7).all()
    dist.barrier()


@check
def objects_through_the_device(rank, size):
    """A group whose only backend is ccl for the device sends objects."""
    torch.standin.set_device(rank)
    group = dist.new_group(backend="standin:ccl")
    everyones = [None] * size
    dist.all_gather_object(everyones, {"rank": rank}, group=group)
    assert everyones == [{"rank": r} for r in range(size)]
    box = [{"from": 1} if rank == 1 else None]
    dist.broadcast_object_list(box, src=1, group=group, device=torch.device(device_of(rank)))
    assert box == [{"from": 1}]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0, group=group)
    assert gathered in (None, list(range(size)))


# ---- training


def trained(rank, device: str | None, **options) -> list[torch.Tensor]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    target = device or "cpu"
    model = DistributedDataParallel(
        model.to(target), device_ids=[device] if device else None, **options
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        batch = torch.randn(5, 8, generator=generator).to(target)
        labels = torch.randn(5, 4, generator=generator).to(target)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), labels).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def check_training(rank, size, **options) -> None:
    torch.standin.set_delay_ms(1)
    weights = trained(rank, device_of(rank), **options)
    on_cpu = trained(rank, None, **options)
    assert all(torch.equal(a, b) for a, b in zip(weights, on_cpu, strict=True))
    everyones = [None] * size
    dist.all_gather_object(everyones, weights)
    assert all(torch.equal(a, b) for a, b in zip(*everyones, strict=True))


@check
def ddp_with_device_ids(rank, size):
    check_training(rank, size)


@check
def ddp_with_many_buckets_that_are_the_gradients(rank, size):
    check_training(rank, size, bucket_cap_mb=0.0001, gradient_as_bucket_view=True)


@check
def ddp_with_a_communication_hook(rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    torch.standin.set_delay_ms(1)
    device = device_of(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 4).to(device), device_ids=[device])
    model.register_comm_hook(None, fp16_compress_hook)
    model(torch.full((2, 4), rank + 1.0).to(device)).sum().backward()
    # Each weight's gradient is the sum of the inputs, 2 and 4, averaged.
    assert (model.module.weight.grad.cpu() == 3).all()


# ---- refused calls


@check
def tensors_that_do_not_fit_together(rank, size):
    here, there = torch.ones(4, device=device_of(rank)), torch.ones(4, device=device_of(1 - rank))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with refused("one device", "standin:0", "standin:1"):
        backend._allgather_base(torch.empty(8, device=device_of(rank)), there)
    with refused("one device", "cpu"):
        backend._allgather_base(torch.empty(8), here)
    with refused("meta"):
        backend.allreduce([torch.empty(3, device="meta")])
    dist.all_reduce(here)
    assert (here.cpu() == size).all()


# ---- a backend of torch's own for the device


@check
def a_device_backend_gets_the_devices_tensors(rank, size):
    import torch_ccl
    from torch._C._distributed_c10d import FakeProcessGroup

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._set_device_backend(
        "standin", FakeProcessGroup._create_internal(rank, size, FakeProcessGroup.Options())
    )
    before = torch_ccl.operation_count()
    tensor = torch.full((4,), 5.0, device=device_of(rank))
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=0)
    dist.all_gather([torch.empty_like(tensor) for _ in range(size)], tensor)
    dist.isend(tensor, 1 - rank).wait()
    assert torch_ccl.operation_count() == before
    assert (tensor.cpu() == 5).all()
    on_cpu = torch.ones(4)
    dist.all_reduce(on_cpu)
    assert (on_cpu == size).all()


@check
def a_device_backend_that_throws_ends_the_batch(rank, size):
    from torch._C._distributed_c10d import FakeProcessGroup

    options = FakeProcessGroup.Options()
    options.error_on_collective = True
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    backend._set_device_backend("standin", FakeProcessGroup._create_internal(rank, size, options))
    device = torch.device(device_of(rank))
    group._start_coalescing(device)
    with refused("FakeProcessGroup"):
        dist.all_reduce(torch.ones(4, device=device), group=group)
    work = group.allreduce([torch.ones(4)], dist.AllreduceOptions())
    work.wait()
    assert group._end_coalescing(device).result() == []  # torch itself does not call it then
