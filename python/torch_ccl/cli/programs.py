"""`torch-ccl bench --programs`: whole programs on ccl, on Gloo and without communication.

decode    tensor-parallel decoding, cut over 2 ranks by hand (two all-reduces in each layer) and by
          DTensor; in every turn the output of each rank is compared with that of one process.
          "unreduced" leaves the all-reduces out: no communication can be faster than that.
ddp_step  a training step with DistributedDataParallel on 2 ranks; one process takes the batch of
          both. In every turn the losses are compared with those of one process.

A rank of a pair has one thread. Variants take turns; all that is printed comes from one go.
"""

import io
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
import typer

from torch_ccl.cli.bench import quartiles, write_json
from torch_ccl.cli.decoder import Decoder, Shape, cut_by_dtensor, cut_by_hand, leave, whole_decoder
from torch_ccl.cli.processes import Place, Processes, processes
from torch_ccl.cli.training import Task, Trainer
from torch_ccl.cli.verdicts import Others, judged, print_verdicts

BACKENDS = ("ccl", "gloo")
THREADS = {"1 thread": 1, "2 threads": 2}
SHAPES = [Shape(hidden, dtype) for hidden in (512, 1024) for dtype in ("float32", "bfloat16")]


class DecodeRank:
    """Answers a Shape by building models for it, and (model, threads) by decoding."""

    def __init__(self, place: Place, backend: str | None):
        self._place, self._backend = place, backend
        self._models: dict[str, Decoder] = {}
        if backend:
            place.join(backend)

    def __call__(self, request: Shape | tuple[str, int]) -> tuple[float, bytes] | None:
        if isinstance(request, Shape):
            self._models = {}
            self._models = self._built(request)
            return None
        model, threads = request
        torch.set_num_threads(threads)
        seconds, output = self._models[model].decode()
        file = io.BytesIO()
        torch.save(output, file)
        return seconds, file.getvalue()

    def _built(self, shape: Shape) -> dict[str, Decoder]:
        rank, size = self._place.rank, self._place.size
        whole = whole_decoder(shape)
        if size == 1:
            return {"whole": whole}
        models = {"by hand": cut_by_hand(whole, rank, size)}
        if self._backend == "ccl":
            models["unreduced"] = cut_by_hand(whole, rank, size, leave)
        return models | {"DTensor": cut_by_dtensor(whole, size)}


def check_outputs(name: str, shape: Shape, outputs: list[bytes], expected: bytes) -> None:
    """Raises if a token's output on a rank is further from the expected than rounding explains."""
    right = torch.load(io.BytesIO(expected))
    for rank, output in enumerate(outputs):
        error = torch.load(io.BytesIO(output)) - right
        worst = (error.norm(dim=1) / right.norm(dim=1)).max().item()
        if not worst <= shape.tolerance:
            raise AssertionError(
                f"decode, {name}: wrong output of rank {rank} with {shape}: off by {worst:.2g}"
            )


def decode_turn(ranks: dict[str, Processes], shape: Shape) -> dict[str, float]:
    """Tokens per second of each variant."""
    speeds, expected = {}, b""
    variants = [(name, "one", "whole", threads) for name, threads in THREADS.items()]
    variants += [("unreduced", "ccl", "unreduced", 1)]
    variants += [
        (f"{backend} {model}", backend, model, 1)
        for model in ("by hand", "DTensor")
        for backend in BACKENDS
    ]
    for name, where, model, threads in variants:
        seconds, outputs = zip(*ranks[where].ask((model, threads)), strict=True)
        expected = expected or outputs[0]
        if model != "unreduced":
            check_outputs(name, shape, outputs, expected)
        speeds[name] = shape.tokens / max(seconds)
    return speeds


def decode_verdicts(shape: Shape, speeds: dict[str, list[float]]) -> list[dict]:
    def row(one: str, other: str, **goal: float) -> dict:
        pairs = zip(speeds[one], speeds[other], strict=True)
        what = f"decode, hidden {shape.hidden}, {shape.dtype}: {one} / {other}"
        return judged(what, [a / b for a, b in pairs], "x", **goal)

    at_512 = {"at_least": 4.0} if shape.hidden == 512 else {}
    return [
        row("ccl by hand", "1 thread", at_least=1.6),
        row("ccl by hand", "gloo by hand", **at_512),
        row("ccl DTensor", "gloo DTensor", above=1.0),
        row("ccl by hand", "2 threads"),
        row("ccl by hand", "unreduced"),
        row("unreduced", "1 thread"),
    ]


def figures(program: str, speeds: dict[str, list[float]]) -> dict:
    row: dict = {"program": program, "variants": {}}
    for name, values in speeds.items():
        low, middle, high = quartiles(values)
        row["variants"][name] = {"median": middle, "quartiles": [low, high]}
    return row


def take_turns(turn: Callable[[], dict[str, float]], alternations: int, progress) -> dict:
    turns = []
    for _ in range(alternations):
        turns.append(turn())
        progress()
    return {name: [speeds[name] for speeds in turns] for name in turns[0]}


def started(stack: ExitStack, worker: Callable, *args) -> dict[str, Processes]:
    """A pair of ranks on each backend and one process without."""
    ranks = {name: stack.enter_context(processes(2, worker, *args, name)) for name in BACKENDS}
    return ranks | {"one": stack.enter_context(processes(1, worker, *args, None))}


def decode(
    alternations: int, progress, shapes: list[Shape] = SHAPES
) -> tuple[list[dict], list[dict]]:
    rows, verdicts = [], []
    with ExitStack() as stack:
        ranks = started(stack, DecodeRank)
        for shape in shapes:
            for some in ranks.values():
                some.ask(shape)
            speeds = take_turns(lambda s=shape: decode_turn(ranks, s), alternations, progress)
            name = f"decode, hidden {shape.hidden}, {shape.dtype}: tokens/s"
            rows.append(figures(name, speeds))
            verdicts += decode_verdicts(shape, speeds)
    return rows, verdicts


def check_losses(name: str, losses: list[float], expected: list[float]) -> None:
    for step, (loss, right) in enumerate(zip(losses, expected, strict=True)):
        if not abs(loss - right) <= 1e-4 * abs(right):
            raise AssertionError(f"ddp_step, {name}: loss {loss} of step {step} is not {right}")


def ddp_turn(ranks: dict[str, Processes]) -> dict[str, float]:
    """Steps per second of each variant."""
    speeds, expected = {}, []
    variants = [(name, "one", threads) for name, threads in THREADS.items()]
    variants += [(backend, backend, 1) for backend in BACKENDS]
    for name, where, threads in variants:
        seconds, losses = zip(*ranks[where].ask(threads), strict=True)
        mean = [sum(of_ranks) / len(of_ranks) for of_ranks in zip(*losses, strict=True)]
        expected = expected or mean
        check_losses(name, mean, expected)
        speeds[name] = 1 / max(seconds)
    return speeds


def ddp_step(
    alternations: int, progress, task: Task | None = None
) -> tuple[list[dict], list[dict]]:
    with ExitStack() as stack:
        ranks = started(stack, Trainer, task or Task())
        speeds = take_turns(lambda: ddp_turn(ranks), alternations, progress)
    verdicts = []
    for other, goal in (("gloo", {"above": 1.0}), ("1 thread", {}), ("2 threads", {})):
        ratios = [a / b for a, b in zip(speeds["ccl"], speeds[other], strict=True)]
        verdicts.append(judged(f"ddp_step: ccl / {other}", ratios, "x", **goal))
    return [figures("ddp_step: steps/s", speeds)], verdicts


PROGRAMS = {"decode": (decode, len(SHAPES)), "ddp_step": (ddp_step, 1)}


def print_speeds(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    for row in rows:
        table = Table("variant", "median", "quartiles", title=row["program"], title_justify="left")
        for name, figure in row["variants"].items():
            low, high = figure["quartiles"]
            table.add_row(name, f"{figure['median']:.2f}", f"{low:.2f}-{high:.2f}")
        Console(width=150).print(table)


def bench_programs(names: list[str], alternations: int, json_file: Path | None) -> None:
    from rich.progress import Progress

    if unknown := set(names) - set(PROGRAMS):
        raise typer.BadParameter(f"there is no program {unknown.pop()}, only {list(PROGRAMS)}")
    rows, verdicts, others = [], [], Others()
    with Progress(transient=True) as bar:
        for name in names:
            program, shapes = PROGRAMS[name]
            task = bar.add_task(name, total=shapes * alternations)
            more, judgements = program(alternations, lambda t=task: bar.advance(t))
            rows += more
            verdicts += judgements
    print_speeds(rows)
    print_verdicts("programs", verdicts, others)
    if json_file:
        busy = others.cores()
        write_json(
            json_file, rows, alternations=alternations, cores_busy_elsewhere=busy, verdicts=verdicts
        )
