"""`torch-ccl bench --programs`: whole programs on ccl, on Gloo and in one process.

decode      tensor-parallel decoding on 2 ranks, with explicit all-reduces (two in each layer) and
            with DTensor. The output of each rank is compared with that of one process.
ddp_step    a training step with DistributedDataParallel on 2 ranks
fsdp2_step  a training step with fully_shard (FSDP2) on 2 ranks: 20 small layers, and 12 layers of
            width 1024

One process trains on the batches of both ranks; its losses are compared with those of the ranks.
Each rank has one thread. The variants run alternately, in one run of the command.
"""

from collections.abc import Callable
from pathlib import Path

from torch_ccl.cli.bench.programs.decode import SHAPES, decode
from torch_ccl.cli.bench.programs.training import FSDP2_TASKS, ddp_step, fsdp2_step
from torch_ccl.cli.bench.programs.variants import ProgramResult
from torch_ccl.cli.bench.progress import Step, progress_bar
from torch_ccl.cli.bench.report import BackgroundLoad, JsonObject, print_figures, write_json
from torch_ccl.cli.tables import print_table

#: Name -> function and number of configurations.
PROGRAMS: dict[str, tuple[Callable[[int, Step], list[ProgramResult]], int]] = {
    "decode": (decode, len(SHAPES)),
    "ddp_step": (ddp_step, 1),
    "fsdp2_step": (fsdp2_step, len(FSDP2_TASKS)),
}


def print_speeds(result: ProgramResult) -> None:
    rows = [[name, speed.text()] for name, speed in result.speeds.items()]
    print_table(
        f"{result.name}: {result.unit}", ["variant", "median (quartiles)"], rows, figures=True
    )


def result_json(result: ProgramResult) -> JsonObject:
    variants = {
        name: {"median": speed.median, "quartiles": speed.quartiles}
        for name, speed in result.speeds.items()
    }
    return {"program": f"{result.name}: {result.unit}", "variants": variants}


def bench_programs(
    names: list[str], alternations: int, goals: bool, json_file: Path | None
) -> None:
    load = BackgroundLoad()
    results: list[ProgramResult] = []
    with progress_bar(sum(PROGRAMS[name][1] * alternations for name in names)) as step:
        for name in names:
            run, _ = PROGRAMS[name]
            results += run(alternations, step)
    for result in results:
        print_speeds(result)
    figures = [figure for result in results for figure in result.ratios]
    print_figures("ratios of the speeds", figures, load, goals)
    if json_file:
        write_json(
            json_file,
            [result_json(result) for result in results],
            alternations=alternations,
            cpus_busy_elsewhere=load.cpus(),
            ratios=[figure.as_json(goals) for figure in figures],
        )
