"""The program `decode`: tensor-parallel decoding of one token at a time."""

import io
from contextlib import ExitStack
from functools import partial

import torch

from torch_ccl.cli.bench.programs.decoder import (
    Decoder,
    Shape,
    full_decoder,
    identity,
    shard_explicitly,
    shard_with_dtensor,
)
from torch_ccl.cli.bench.programs.variants import (
    BACKENDS,
    ONE_PROCESS,
    THREADS,
    ProgramResult,
    Speeds,
    alternate,
    start_variants,
    summarize,
)
from torch_ccl.cli.bench.progress import Step
from torch_ccl.cli.bench.ranks import BenchProcess, RankConnections
from torch_ccl.cli.bench.report import Goal

SHAPES = [Shape(hidden, dtype) for hidden in (512, 1024) for dtype in ("float32", "bfloat16")]
#: The explicit variant without its all-reduces: an upper bound for any backend.
NO_COMMUNICATION = "no communication"

Reply = tuple[float, bytes]  # seconds, and the output as a file of torch.save()


class DecodeHandler:
    """Request: a Shape (builds the models), or (model, threads) (decodes)."""

    def __init__(self, process: BenchProcess, backend: str | None):
        self._process, self._backend = process, backend
        self._models: dict[str, Decoder] = {}
        if backend:
            process.init_process_group(backend)

    def __call__(self, request: Shape | tuple[str, int]) -> Reply | None:
        if isinstance(request, Shape):
            self._models = {}  # frees the memory of the models before
            self._models = self._build(request)
            return None
        model, threads = request
        torch.set_num_threads(threads)
        seconds, output = self._models[model].decode()
        file = io.BytesIO()
        torch.save(output, file)
        return seconds, file.getvalue()

    def _build(self, shape: Shape) -> dict[str, Decoder]:
        rank, size = self._process.rank, self._process.size
        full = full_decoder(shape)
        if size == 1:
            return {"full": full}
        models = {"explicit": shard_explicitly(full, rank, size)}
        if self._backend == "ccl":
            models[NO_COMMUNICATION] = shard_explicitly(full, rank, size, identity)
        return models | {"DTensor": shard_with_dtensor(full, size)}


def check_outputs(variant: str, shape: Shape, outputs: list[bytes], expected: bytes) -> None:
    """Raises if a token's output differs by more than rounding explains."""
    right = torch.load(io.BytesIO(expected))
    for rank, output in enumerate(outputs):
        error = torch.load(io.BytesIO(output)) - right
        worst = (error.norm(dim=1) / right.norm(dim=1)).max().item()
        if not worst <= shape.tolerance:
            raise AssertionError(
                f"decode, {variant}: wrong output of rank {rank} with {shape}: "
                f"relative error {worst:.2g}"
            )


def measure_once(ranks: dict[str, RankConnections], shape: Shape) -> dict[str, float]:
    """Tokens per second of each variant."""
    variants = [(name, ONE_PROCESS, "full", threads) for name, threads in THREADS.items()]
    variants += [(NO_COMMUNICATION, "ccl", NO_COMMUNICATION, 1)]
    variants += [
        (f"{backend} {model}", backend, model, 1)
        for model in ("explicit", "DTensor")
        for backend in BACKENDS
    ]
    speeds, expected = {}, b""
    for name, where, model, threads in variants:
        replies: list[Reply] = ranks[where].request((model, threads))
        outputs = [output for _, output in replies]
        expected = expected or outputs[0]
        if model != NO_COMMUNICATION:
            check_outputs(name, shape, outputs, expected)
        speeds[name] = shape.tokens / max(seconds for seconds, _ in replies)
    return speeds


def result_of(name: str, shape: Shape, speeds: Speeds) -> ProgramResult:
    one, two = THREADS
    gloo_goal = Goal(">=", 4.0) if shape.hidden == 512 else None
    pairs = [
        ("ccl explicit", one, Goal(">=", 1.6)),
        ("ccl explicit", "gloo explicit", gloo_goal),
        ("ccl DTensor", "gloo DTensor", Goal(">", 1.0)),
        ("ccl explicit", two, None),
        ("ccl explicit", NO_COMMUNICATION, None),
        (NO_COMMUNICATION, one, None),
    ]
    return summarize(name, "tokens/s", speeds, pairs)


def decode(alternations: int, step: Step, shapes: list[Shape] = SHAPES) -> list[ProgramResult]:
    results = []
    with ExitStack() as stack:
        ranks = start_variants(stack, DecodeHandler)
        for shape in shapes:
            for variant in ranks.values():
                variant.request(shape)
            name = f"decode, hidden size {shape.hidden}, {shape.dtype}"
            speeds = alternate(name, partial(measure_once, ranks, shape), alternations, step)
            results.append(result_of(name, shape, speeds))
    return results
