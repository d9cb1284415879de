"""The programs `ddp_step` and `fsdp2_step`: a training step on two ranks."""

from contextlib import ExitStack

from torch_ccl.cli.bench.programs.trainer import Task, TrainHandler
from torch_ccl.cli.bench.programs.variants import (
    BACKENDS,
    ONE_PROCESS,
    THREADS,
    ProgramResult,
    alternate,
    start_variants,
    summarize,
)
from torch_ccl.cli.bench.progress import Step
from torch_ccl.cli.bench.ranks import RankConnections
from torch_ccl.cli.bench.report import Goal

#: 25 million parameters: the all-reduce of the gradients takes longer than their computation.
DDP_TASK = Task("ddp_step", "ddp", layers=12, width=512, expansion=4)
FSDP2_TASKS = [
    Task("fsdp2_step, 20 layers of 64", "fsdp2", layers=20, width=64, expansion=1),
    Task("fsdp2_step, 12 layers of 1024", "fsdp2", layers=12, width=1024, expansion=1),
]
TOLERANCE = 1e-4


def check_losses(variant: str, losses: list[float], expected: list[float]) -> None:
    for step, (loss, right) in enumerate(zip(losses, expected, strict=True)):
        if not abs(loss - right) <= TOLERANCE * abs(right):
            raise AssertionError(f"{variant}: loss {loss} of step {step} is not {right}")


def measure_once(task: Task, ranks: dict[str, RankConnections]) -> dict[str, float]:
    """Steps per second of each variant."""
    variants = [(name, ONE_PROCESS, threads) for name, threads in THREADS.items()]
    variants += [(backend, backend, 1) for backend in BACKENDS]
    speeds: dict[str, float] = {}
    expected: list[float] = []
    for name, where, threads in variants:
        replies: list[tuple[float, list[float]]] = ranks[where].request(threads)
        per_step = zip(*(losses for _, losses in replies), strict=True)
        mean = [sum(losses) / len(losses) for losses in per_step]
        expected = expected or mean
        check_losses(f"{task.name}, {name}", mean, expected)
        speeds[name] = 1 / max(seconds for seconds, _ in replies)
    return speeds


def run_task(task: Task, alternations: int, step: Step) -> ProgramResult:
    with ExitStack() as stack:
        ranks = start_variants(stack, TrainHandler, task)
        speeds = alternate(task.name, lambda: measure_once(task, ranks), alternations, step)
    pairs: list[tuple[str, str, Goal | None]] = [("ccl", "gloo", Goal(">", 1.0))]
    pairs += [("ccl", name, None) for name in THREADS]
    return summarize(task.name, "steps/s", speeds, pairs)


def ddp_step(alternations: int, step: Step, task: Task = DDP_TASK) -> list[ProgramResult]:
    return [run_task(task, alternations, step)]


def fsdp2_step(
    alternations: int, step: Step, tasks: list[Task] = FSDP2_TASKS
) -> list[ProgramResult]:
    return [run_task(task, alternations, step) for task in tasks]
