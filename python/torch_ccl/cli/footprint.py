"""`torch-ccl bench --footprint`: what the backend costs beside the data that it moves.

overhead  an all-reduce of 8 B on 2 ranks, less the same call on torch's `fake` backend
zero copy collectives on tensors of torch_ccl.empty(), against ordinary ones
waiting   processor time of a rank that waits 10 s for its peer
memory    growth of Pss on 8 ranks, after init and after all sizes of the goals ran once; the
          tensors are freed before it is read. `fake` shows what torch itself takes for that.
start     init_process_group and the first barrier, in fresh processes, with one TCP store
"""

import statistics
from pathlib import Path

from torch_ccl.cli.bench import write_json
from torch_ccl.cli.footprint_ranks import Beginner, Holder, Waiter
from torch_ccl.cli.processes import processes
from torch_ccl.cli.timing import SHARED, Case, running_ranks
from torch_ccl.cli.verdicts import Others, judged, print_verdicts

WAIT_S = 10.0


def overhead(alternations: int, progress) -> list[dict]:
    case = Case("all_reduce", 8, "float32", 2)
    medians: dict[str, list[float]] = {"ccl": [], "fake": []}
    with running_ranks(2, list(medians)) as ranks:
        for _ in range(3 * alternations):
            for backend, values in medians.items():
                values.append(statistics.median(ranks.time(case, backend)) * 1e6)
    progress()
    more = [ours - fake for ours, fake in zip(medians["ccl"], medians["fake"], strict=True)]
    what = "all_reduce, 8 B, 2 ranks"
    return [
        judged(f"{what}: ccl", medians["ccl"], "us"),
        judged(f"{what}: fake", medians["fake"], "us"),
        judged(f"{what}: ccl - fake", more, "us", at_most=3.0),
    ]


def zero_copy(alternations: int, progress) -> list[dict]:
    rows = []
    with running_ranks(2, ["ccl"]) as ranks:
        for op, size, goal in (
            ("all_reduce", 1 << 20, None),
            ("all_reduce", 16 << 20, 0.5),
            ("all_reduce", 64 << 20, None),
            ("reduce_scatter", 16 << 20, None),
            ("all_gather", 16 << 20, None),
            ("all_to_all", 16 << 20, None),
            ("broadcast", 16 << 20, None),
        ):
            case = Case(op, size, "float32", 2)
            ratios = []
            for _ in range(alternations):
                times = [ranks.time(case, backend) for backend in ("ccl", "ccl" + SHARED)]
                ordinary, shared = map(statistics.median, times)
                ratios.append(shared / ordinary)
            what = f"{op}, {size >> 20} MiB, 2 ranks: zero copy / ordinary"
            rows.append(judged(what, ratios, "x", at_most=goal))
            progress()
    return rows


def waiting(_alternations: int, progress, wait_s: float = WAIT_S) -> list[dict]:
    rows = []
    with processes(2, Waiter, "ccl") as ranks:
        for op in ("recv", "barrier", "all_reduce"):
            percent = ranks.ask((op, wait_s))[0]
            rows.append(judged(f"waiting {wait_s:g} s in {op}", [percent], "% of a core", below=2))
            progress()
    return rows


def memory(_alternations: int, progress, size: int = 8) -> list[dict]:
    rows = []
    for backend in ("ccl", "gloo", "fake"):
        with processes(size, Holder, backend) as ranks:
            before = ranks.ask("read")
            for step, what, at_most in (
                ("init", "after init", 16),
                ("run", "after every size of the goals", 24),
            ):
                ranks.ask(step)
                after = ranks.ask("read")
                grown = [(a["Pss"] - b["Pss"]) / 1024 for a, b in zip(after, before, strict=True)]
                # Of all ranks the worst: a goal for a rank is a goal for each.
                goal = {"at_most": at_most} if backend == "ccl" else {}
                row = judged(f"Pss, {size} ranks, {what}: {backend}", [max(grown)], "MiB", **goal)
                kinds = [kind for kind in after[0] if kind != "Pss"]
                row["worst_rank_mib"] = {
                    kind: max(
                        (a[kind] - b[kind]) / 1024 for a, b in zip(after, before, strict=True)
                    )
                    for kind in kinds
                }
                rows.append(row)
        progress()
    return rows


def start(alternations: int, progress, sizes: tuple[int, ...] = (2, 8)) -> list[dict]:
    from torch.distributed import TCPStore

    rows = []
    for size in sizes:
        times: dict[str, list[float]] = {"ccl": [], "gloo": []}
        for _ in range(alternations):
            for backend, values in times.items():
                store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
                with processes(size, Beginner, store.port) as ranks:
                    begun, ended = zip(*ranks.ask(backend), strict=True)
                values.append((max(ended) - min(begun)) * 1e3)
                progress()
        what = f"init and first barrier, {size} ranks"
        rows += [judged(f"{what}: {backend}", values, "ms") for backend, values in times.items()]
        ratios = [theirs / ours for ours, theirs in zip(*times.values(), strict=True)]
        rows.append(judged(f"{what}: gloo / ccl", ratios, "x", at_least=1.0))
    return rows


def bench_footprint(alternations: int, json_file: Path | None) -> None:
    from rich.progress import Progress

    rows, others = [], Others()
    with Progress(transient=True) as bar:
        task = bar.add_task("footprint", total=1 + 7 + 3 + 3 + 4 * alternations)
        for measure in (overhead, zero_copy, waiting, memory, start):
            bar.update(task, description=measure.__name__)
            rows += measure(alternations, lambda: bar.advance(task))
    print_verdicts("footprint", rows, others)
    if json_file:
        busy = others.cores()
        write_json(json_file, rows, alternations=alternations, cores_busy_elsewhere=busy)
