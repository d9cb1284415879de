"""CCL_WORKER_COUNT and CCL_WORKER_AFFINITY: number and affinity of worker threads."""

import functools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from support.ranks import run_ranks

CPUS = sorted(os.sched_getaffinity(0))
FIRST, LAST = CPUS[0], CPUS[-1]
MISSING = 4000  # no machine has a CPU of this number


def prepare(directory: Path, settings: dict, cpus: list | None, rank: int) -> None:
    """Pins the rank as a launcher would, and redirects its stderr to a file."""
    os.environ.update(settings)
    if cpus:
        os.sched_setaffinity(0, cpus[rank])
    os.dup2(os.open(directory / f"stderr-{rank}", os.O_CREAT | os.O_WRONLY, 0o600), 2)


def parse_cpu_list(text: str) -> set[int]:
    cpus = set()
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def worker_masks() -> list[set[int]]:
    """Returns the CPUs of each worker thread of this process, in the order of the workers."""
    masks = {}
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if status["Name"].startswith("ccl-worker-"):
            number = int(status["Name"].removeprefix("ccl-worker-"))
            masks[number] = parse_cpu_list(status["Cpus_allowed_list"])
    assert sorted(masks) == list(range(len(masks)))
    return [masks[number] for number in sorted(masks)]


def reduce_16_megabytes(rank: int, size: int) -> None:
    ramp = torch.arange(4 << 20) % 1000
    x = ramp * (rank + 1.0)
    dist.all_reduce(x)
    assert x.equal(ramp * (size * (size + 1) / 2))


def check_workers(rank: int, size: int) -> list[set[int]]:
    made = worker_masks()
    reduce_16_megabytes(rank, size)
    assert worker_masks()[: len(made)] == made
    return made


def run_with(directory: Path, cpus: list | None = None, size: int = 2, **settings: str):
    """Returns for each rank the masks of the workers that exist at the start, and its warnings.

    Rank 0 alone warns, for the whole job.
    """
    before = functools.partial(prepare, directory, settings, cpus)
    masks = run_ranks(size, check_workers, prepare=before)
    texts = [(directory / f"stderr-{rank}").read_text() for rank in range(size)]
    warnings = [[line for line in text.splitlines() if "tccl" in line] for text in texts]
    return list(zip(masks, warnings, strict=True))


def test_no_workers_before_first_use(tmp_path):
    assert run_with(tmp_path) == [([], []), ([], [])]


def test_worker_count(tmp_path):
    settings = {"CCL_WORKER_COUNT": "1", "CCL_WORKER_AFFINITY": "auto"}
    assert run_with(tmp_path, **settings) == [([set(CPUS)], [])] * 2


def test_zero_workers(tmp_path):
    assert run_with(tmp_path, CCL_WORKER_COUNT="0") == [([], [])] * 2


def test_each_rank_takes_its_part_of_the_list(tmp_path):
    settings = {"CCL_WORKER_COUNT": "2", "CCL_WORKER_AFFINITY": f"{FIRST},{LAST},{LAST},{LAST}"}
    first, second = run_with(tmp_path, **settings)
    assert first == ([{FIRST}, {LAST}], [])
    assert second == ([{LAST}, {LAST}], [])


def test_affinity_list_sets_count(tmp_path):
    first, second = run_with(tmp_path, CCL_WORKER_AFFINITY=f"{LAST},{FIRST}")
    assert first == ([{LAST}], [])
    assert second == ([{FIRST}], [])


def test_the_list_of_the_documents(tmp_path):
    """The list is for 56 CPUs. With fewer, one warning names the CPUs that do not exist."""
    settings = {"CCL_WORKER_COUNT": "4", "CCL_WORKER_AFFINITY": "0,1,2,3,28,29,31,32"}
    ranks = run_with(tmp_path, **settings)
    parts = [0, 1, 2, 3], [28, 29, 31, 32]
    for (masks, _), part in zip(ranks, parts, strict=True):
        assert masks == [{cpu} if cpu in CPUS else set(CPUS) for cpu in part]
    counts = [len(warnings) for _, warnings in ranks]
    assert counts == [not {*parts[0], *parts[1]} <= set(CPUS), 0]


def test_cpus_that_do_not_exist(tmp_path):
    settings = {
        "CCL_WORKER_COUNT": "3",
        "CCL_WORKER_AFFINITY": f"{LAST},{MISSING}-{MISSING + 4}",
    }
    first, second = run_with(tmp_path, **settings)
    assert first[0] == [{LAST}, set(CPUS), set(CPUS)]
    assert second[0] == [set(CPUS)] * 3
    assert len(first[1]) == 1 and "CPUs 4000-4004 are" in first[1][0], first[1]
    assert second[1] == []


def test_outside_the_cpus_of_the_rank(tmp_path):
    """The documents pin ranks to other CPUs than their workers."""
    settings = {"CCL_WORKER_COUNT": "1", "CCL_WORKER_AFFINITY": f"{LAST},{LAST}"}
    cpus = [{FIRST}, {FIRST}]
    assert run_with(tmp_path, cpus, **settings) == [([{LAST}], [])] * 2


def test_unpinned_workers_stay_on_the_cpus_of_the_rank(tmp_path):
    first, second = run_with(tmp_path, [{FIRST}, {LAST}], CCL_WORKER_COUNT="1")
    assert first == ([{FIRST}], [])
    assert second == ([{LAST}], [])


def test_a_list_of_another_length(tmp_path):
    settings = {"CCL_WORKER_COUNT": "2", "CCL_WORKER_AFFINITY": f"{FIRST},{LAST},{FIRST}"}
    first, second = run_with(tmp_path, **settings)
    assert first[0] == [{FIRST}, {LAST}]
    assert second[0] == [{FIRST}, set(CPUS)]
    (warning,) = first[1]
    assert "CCL_WORKER_COUNT=2" in warning
    assert f"CCL_WORKER_AFFINITY={FIRST},{LAST},{FIRST}" in warning
    assert "need a list of 4 CPUs, not of 3" in warning
    assert second[1] == []


def test_more_workers_than_cpus(tmp_path):
    first, second = run_with(tmp_path, [{FIRST}, {LAST}], CCL_WORKER_COUNT="2")
    assert (first[0], second[0]) == ([{FIRST}] * 2, [{LAST}] * 2)
    (warning,) = first[1]
    assert "CCL_WORKER_COUNT=2, CCL_WORKER_AFFINITY=auto" in warning
    assert f"the CPUs of this rank ({FIRST})" in warning
    assert second[1] == []


def check_fork(rank: int, size: int) -> None:
    reduce_16_megabytes(rank, size)
    child = os.fork()
    if child == 0:
        dist.destroy_process_group()  # joins no thread: there are none here
        os._exit(0 if worker_masks() == [] else 1)
    assert os.waitpid(child, 0)[1] == 0
    reduce_16_megabytes(rank, size)
    assert len(worker_masks()) == 2


def test_a_forked_child_has_none(tmp_path):
    before = functools.partial(prepare, tmp_path, {"CCL_WORKER_COUNT": "2"}, None)
    run_ranks(2, check_fork, prepare=before)
