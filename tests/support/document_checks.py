"""Checks of the output of the documents' scripts."""

import json
import os
import re
from typing import NamedTuple

from torch_ccl.agent.cores import cores_of

from support import profile_table
from support.launchers import HYDRA_LABEL, INTEL_MPI, SIZE, RankOutput, split_by_label

PROMPT = re.compile(r"(\S+@\S+)?\$ ")


# ---- the output of each rank; `text` is the script


def print_nothing(ranks: list[RankOutput], text: str) -> None:
    for rank in ranks:
        assert not rank.out, rank.out
        assert not rank.err, rank.err


def is_rank_line(line: str, rank: RankOutput) -> bool:
    """Whether the line has two numbers: the rank, then the size."""
    return re.findall(r"\d+", line) == [str(rank.rank), str(SIZE)]


def print_rank(ranks: list[RankOutput], text: str) -> None:
    for rank in ranks:
        lines = rank.out.splitlines()
        assert len(lines) == 1 and is_rank_line(lines[0], rank), rank.out
        assert not rank.err, rank.err


def print_rank_and_profile(ranks: list[RankOutput], text: str) -> None:
    for rank in ranks:
        check_rank_and_profile(rank)


def check_rank_and_profile(rank: RankOutput) -> None:
    rank_line, table = rank.out.split("\n", 1)
    assert is_rank_line(rank_line, rank), rank.out
    assert profile_table.rows(table, "pg::") == [
        profile_table.Row("pg::allreduce", 10, "[[2, 2]]"),
        profile_table.Row("pg::allreduce", 10, "[[4, 4]]"),
        profile_table.Row("pg::wait::allreduce::sz:16", 10, "[]"),
        profile_table.Row("pg::wait::allreduce::sz:4", 10, "[]"),
    ], table
    heads = {"Name", "CPU total %", "CPU total", "CPU time avg", "Input Shapes"}
    assert heads <= set(profile_table.columns(table)), table
    assert "Self CPU time total: " in table
    assert not profile_table.without_log(rank.err), rank.err


def print_same_weights(ranks: list[RankOutput], text: str) -> None:
    printed = {rank.out for rank in ranks}
    assert len(printed) == 1 and printed.pop().startswith("weights [["), ranks


def print_iterations(ranks: list[RankOutput], text: str) -> None:
    """The script prints a line for each iteration and device, then data and weights."""
    formats = re.findall(r'print\("([^"]*)"\.format\(i, device\)\)', text)
    (steps,) = re.findall(r"for i in range\((\d+)\)", text)
    (device,) = re.findall(r'device = (".*)', text)
    assert len(formats) == 5, formats
    results = []
    for rank in ranks:
        *lines, data, weights = rank.out.splitlines()
        device_name = eval(device, {"local_rank": rank.rank})
        expected = [line.format(i, device_name) for i in range(int(steps)) for line in formats]
        assert lines == expected, rank.out
        results.append((data, weights))
    have_trained_together(results)


def have_trained_together(results: list[tuple[str, str]]) -> None:
    """The ranks have the same weights, bit by bit, although they had different data."""
    all_data, all_weights = ({*column} for column in zip(*results, strict=True))
    assert len(all_data) == len(results) and all(d.startswith("data [[") for d in all_data), results
    assert len(all_weights) == 1 and all_weights.pop().startswith("weights [["), results


# ---- the joint output of the ranks of a command line


class Ran(NamedTuple):
    """A block of commands that exited with 0."""

    block: str
    mpiexec: str
    hosts: list[str]  # their names
    lines: list[str]  # on stdout
    err: str


def print_labelled_iterations(ran: Ran) -> None:
    printed = split_by_label("\n".join(ran.lines), HYDRA_LABEL)
    assert set(printed) == {"0", "1"}, ran.lines
    results = []
    for rank, text in printed.items():
        *iterations, data, weights = text.splitlines()
        found = [re.search(r": (\d) on device \w+:(\d)$", line).groups() for line in iterations]
        assert found == [(str(i), rank) for i in range(3) for _ in range(5)], ran.lines
        results.append((data, weights))
    have_trained_together(results)


def print_ranks(ran: Ran) -> None:
    found = sorted(re.findall(r"\d+", line) for line in ran.lines)
    assert found == [[str(rank), str(SIZE)] for rank in range(SIZE)], ran.lines


def print_profiles(ran: Ran) -> None:
    printed = split_by_label("\n".join(ran.lines), HYDRA_LABEL)
    for rank in range(SIZE):
        check_rank_and_profile(RankOutput(rank, printed[str(rank)], ""))


def print_shown_lines(ran: Ran) -> None:
    """The output is the lines that the document shows below the command, in any order."""
    shown = [line for line in ran.block.splitlines() if line and not PROMPT.match(line)]
    assert sorted(ran.lines) == sorted(shown), ran.lines


def print_hosts(lines: list[str]) -> None:
    """Each of four ranks on two hosts prints one line; then the settings follow."""
    places = sorted(line for line in lines if "rank" in line)
    found = [re.search(r"(\S+): rank (\d) of (\d)", line).groups() for line in places]
    assert sorted(rank for _, rank, _ in found) == list("0123"), lines
    assert {size for *_, size in found} == {"4"} and len({host for host, *_ in found}) == 2, lines
    assert any(line.startswith("CCL_ATL_TRANSPORT=") for line in lines[4:]), lines


def have_not_grown(ran: Ran) -> None:
    assert all(rank["grown_kib"] <= GROWTH_KIB for rank in have_settings(ran)), ran.lines


def have_settings(ran: Ran) -> list[dict]:
    """Every rank prints once, after its label, the expected rank, host and settings of the command
    line. Returns the other values of each rank; stdout and stderr have no further lines."""
    size = int(re.search(r"-np? (\d+)", ran.block)[1])
    each = int(re.search(r"-ppn (\d+)", ran.block)[1])
    printed = sorted(
        (HYDRA_LABEL.fullmatch(line).groups() for line in ran.lines), key=lambda s: s[0]
    )
    assert [label for label, _ in printed] == [str(rank) for rank in range(size)], ran.lines
    ranks = [json.loads(text) for _, text in printed]
    for number, rank in enumerate(ranks):
        expected_rank = {"rank": number, "size": size, "host": ran.hosts[number // each]}
        expected = expected_rank | settings(ran, number % each)
        assert {name: rank.pop(name) for name in expected} == expected, ran.lines
    foreign = [line for line in ran.err.splitlines() if not any(word in line for word in KNOWN)]
    assert not foreign, ran.err
    return ranks


def settings(ran: Ran, local_rank: int) -> dict:
    """The settings that a rank must have. MPICH ignores Intel MPI's masks. libiomp5 reads KMP_
    variables, and binds the first thread to one of its processors."""

    def value(name: str) -> str:
        return re.search(rf"{name}=(\S+)", ran.block)[1]

    preloaded = re.search(r"^\s*export LD_PRELOAD=", ran.block, re.MULTILINE) is not None
    cpus = sorted(os.sched_getaffinity(0))
    machine = len(cores_of(cpus))
    if ran.mpiexec == INTEL_MPI:
        mask = int(value("I_MPI_PIN_DOMAIN").strip("[]").split(",")[local_rank], 16)
        cpus = [cpu for cpu in cpus if mask >> cpu & 1]
    return {
        "libiomp5": preloaded,
        "blocktime_ms": int(value("KMP_BLOCKTIME")) if preloaded else None,
        "threads": min(int(value("OMP_NUM_THREADS")), machine),  # MKL uses at most one per core
        "cpus": cpus[:1] if preloaded else cpus,
    }


def have_seen_all_samples(lines: list[str], checkpoint: dict) -> None:
    """The ranks have seen all samples of two epochs, each once, in different orders; the
    checkpoint is complete."""
    have_shared_epochs(lines)
    assert set(checkpoint) == {"module.weight", "module.bias"}, checkpoint


def have_shared_epochs(lines: list[str]) -> None:
    """Two ranks shared all samples of each of two epochs, in different orders."""
    found = sorted(EPOCH.fullmatch(line).groups() for line in lines)
    assert [(rank, epoch) for rank, epoch, _ in found] == [(r, e) for r in "01" for e in "01"]
    samples = [json.loads(samples) for *_, samples in found]
    for epoch in range(2):
        assert sorted(samples[epoch] + samples[epoch + 2]) == list(range(16)), lines
    assert samples[0] != samples[1], "set_epoch did not shuffle anew"


def have_used_all_tiles(lines: list[str], devices: list[str]) -> None:
    """Each rank prints its device and the epochs; gradients are equal on all ranks."""
    have_shared_epochs([line for line in lines if EPOCH.fullmatch(line)])
    gradients = [line for line in lines if line.startswith("gradients ")]
    assert len(gradients) == 2 and len(set(gradients)) == 1, lines
    printed = sorted(line for line in lines if "training" in line)
    assert all(device in line for device, line in zip(devices, printed, strict=True)), lines


EPOCH = re.compile(r"rank (\d+) epoch (\d+): (.*)")
GROWTH_KIB = 256  # in 1000 steps
#: Expected on stderr: c10d finds no names for addresses of virtual hosts, and the cores of the
#: document do not exist on this machine.
KNOWN = ("[c10d]", "CCL_WORKER_AFFINITY")
