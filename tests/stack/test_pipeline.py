"""Pipelines: torch's schedules, and stages joined by plain send and recv."""

import torch
import torch.distributed as dist
from support.debug_levels import assert_close, assert_equal, data, seeded
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)

CPU = torch.device("cpu")
MICROBATCHES = 4
TARGET = data(50, 8, 6)


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh())


def layers(count: int) -> nn.Module:
    return nn.Sequential(*[layer() for _ in range(count)])


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def one_process(count: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    net = seeded(lambda: layers(count))
    output = net(data(0, 8, 6))
    pieces = zip(output.chunk(MICROBATCHES), TARGET.chunk(MICROBATCHES), strict=True)
    losses = [squared(y, t) for y, t in pieces]
    (sum(losses) / MICROBATCHES).backward()
    return net, output, torch.stack(losses)


def assert_stage(what: str, stages: dict[int, nn.Module], expected: nn.Module) -> None:
    """Compares gradients of the stages of this rank, by the index of the layer."""
    for index, stage in stages.items():
        for (name, p), q in zip(
            stage.named_parameters(), expected[index].parameters(), strict=True
        ):
            assert_close(p.grad, q.grad, f"{what}, gradient of {name} in layer {index}")


def run_schedule(schedule, rank: int, last: int) -> tuple[torch.Tensor | None, list]:
    """Only the first stage has inputs, only the last has targets and losses."""
    losses = []
    inputs = [data(0, 8, 6)] if rank == 0 else []
    targets = {"target": TARGET, "losses": losses} if rank == last else {}
    return schedule.step(*inputs, **targets), losses


def check_one_stage_each(rank: int, size: int) -> None:
    expected, expected_output, expected_losses = one_process(size)
    for kind in (ScheduleGPipe, Schedule1F1B):
        mine = seeded(lambda: layers(size))[rank]
        stage = PipelineStage(mine, rank, size, CPU)
        schedule = kind(stage, MICROBATCHES, loss_fn=squared)
        for _ in range(2):  # the first step also sends shapes to the next stage
            mine.zero_grad()
            output, losses = run_schedule(schedule, rank, size - 1)
            assert_stage(kind.__name__, {rank: mine}, expected)
            if rank == size - 1:
                assert_close(output, expected_output, kind.__name__)
                assert_close(torch.stack(losses), expected_losses, "losses")


def test_one_stage_each(on_ranks):
    on_ranks(check_one_stage_each)


def check_several_stages_each(rank: int, size: int) -> None:
    expected, _, expected_losses = one_process(2 * size)
    for kind in (
        ScheduleInterleaved1F1B,
        ScheduleLoopedBFS,
        ScheduleInterleavedZeroBubble,
        ScheduleZBVZeroBubble,
    ):
        v_shaped = kind is ScheduleZBVZeroBubble  # rank 0 has the first stage and the last
        indices = [rank, 2 * size - 1 - rank if v_shaped else size + rank]
        all_layers = seeded(lambda: layers(2 * size))
        mine = {index: all_layers[index] for index in indices}
        stages = [PipelineStage(mine[i], i, 2 * size, CPU) for i in indices]
        schedule = kind(stages, MICROBATCHES, loss_fn=squared)
        last = 0 if v_shaped else size - 1
        _, losses = run_schedule(schedule, rank, last)
        assert_stage(kind.__name__, mine, expected)
        if rank == last:
            assert_close(torch.stack(losses), expected_losses, kind.__name__)


def test_several_stages_each(on_ranks):
    on_ranks(check_several_stages_each)


def check_traced(rank: int, size: int) -> None:
    """torch splits the model into stages."""
    expected, expected_output, _ = one_process(size)
    cuts = {str(index): SplitPoint.BEGINNING for index in range(1, size)}
    pipe = pipeline(seeded(lambda: layers(size)), (data(0, 2, 6),), split_spec=cuts)
    stage = pipe.build_stage(rank, CPU)
    output, _ = run_schedule(ScheduleGPipe(stage, MICROBATCHES, loss_fn=squared), rank, size - 1)
    for (name, p), q in zip(
        stage.submod.named_parameters(), expected[rank].parameters(), strict=True
    ):
        assert_close(p.grad, q.grad, f"gradient of {name}")
    if rank == size - 1:
        assert_close(output, expected_output, "output")


def test_traced(on_ranks):
    on_ranks(check_traced)


# ---- by hand


def check_by_hand(rank: int, size: int) -> None:
    """Activations go right and gradients left, microbatch by microbatch, all sends in flight."""
    expected, expected_output, _ = one_process(size)
    mine = seeded(lambda: layers(size))[rank]
    first, last = rank == 0, rank == size - 1
    sends, inputs, outputs = [], [], []
    for i, chunk in enumerate(data(0, 8, 6).chunk(MICROBATCHES)):
        x = chunk.clone() if first else torch.empty_like(chunk)
        if not first:
            dist.recv(x, src=rank - 1, tag=i)
        inputs.append(x.requires_grad_())
        outputs.append(mine(x))
        if not last:
            sends.append(dist.isend(outputs[-1].detach(), dst=rank + 1, tag=i))
    if last:
        assert_close(torch.cat(outputs), expected_output, "output")
    # gradients in the opposite order of microbatches, told apart by their tags
    waiting = {}
    if not last:
        for i in range(MICROBATCHES):
            gradient = torch.empty(8 // MICROBATCHES, 6, dtype=torch.float64)
            waiting[i] = (dist.irecv(gradient, src=rank + 1, tag=100 + i), gradient)
    for i in reversed(range(MICROBATCHES)):
        if last:
            target = TARGET.chunk(MICROBATCHES)[i]
            (squared(outputs[i], target) / MICROBATCHES).backward()
        else:
            work, gradient = waiting[i]
            work.wait()
            outputs[i].backward(gradient)
        if not first:
            sends.append(dist.isend(inputs[i].grad, dst=rank - 1, tag=100 + i))
    for work in sends:
        work.wait()
    assert_stage("by hand", {rank: mine}, expected)


def test_by_hand(on_ranks):
    on_ranks(check_by_hand)


def check_ring(rank: int, size: int) -> None:
    """Shifts around a ring by batches of operations; after `size` steps every tensor is back."""
    right, left = (rank + 1) % size, (rank - 1) % size
    x = data(rank, 1000)
    for step in range(size):
        received = torch.empty_like(x)
        batch = [
            dist.P2POp(dist.isend, x, right),
            dist.P2POp(dist.irecv, received, left),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        x = received
        assert_equal(x, data((rank - step - 1) % size, 1000), f"step {step}")
    assert_equal(x, data(rank, 1000), "once around")

    # from any source
    if rank == 0:
        senders = []
        for _ in range(size - 1):
            buffer = torch.empty(3, dtype=torch.float64)
            sender = dist.recv(buffer)
            assert_equal(buffer, data(sender, 3), f"from rank {sender}")
            senders.append(sender)
        assert_equal(sorted(senders), list(range(1, size)), "senders")
    else:
        dist.send(data(rank, 3), dst=0)


def test_ring(on_ranks):
    on_ranks(check_ring)
