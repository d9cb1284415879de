"""`torch-ccl bench --peers` without MPI: our own program, the loop's checks, the report."""

from pathlib import Path

import pytest
from support.commands import run
from torch_ccl.cli.bench import peers
from torch_ccl.cli.bench.cases import Case
from torch_ccl.cli.bench.peers.libraries import SOURCES, Library, build_ours, compile_loop
from torch_ccl.cli.bench.peers.run import time_operation

# A library of one rank whose sum is wrong in one element.
WRONG_LIBRARY = """
#include "loop.h"
struct Wrong {
  int rank = 0, size = 1;
  void allreduce(float* x, std::size_t count) { x[count / 2] += 1; }
  void broadcast(float*, std::size_t) {}
  void allgather(const float*, float*, std::size_t) {}
  void alltoall(const float*, float*, std::size_t) {}
};
int main(int argc, char** argv) {
  Wrong library;
  return loop::run(library, argc, argv);
}
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return build_ours(tmp_path_factory.mktemp("peers"))


def cases(op, sizes, ranks=2):
    return [Case(op, size, "float32", ranks) for size in sizes]


@pytest.mark.timeout(60)
def test_times_of_every_operation(ours):
    for op in peers.OPERATIONS:
        times = time_operation(ours, cases(op, [8, 4096]))
        assert list(times) == cases(op, [8, 4096]), op
        assert all(len(us) == 200 and min(us) > 0 for us in times.values()), op


def test_three_ranks_and_a_size_that_does_not_divide(ours):
    for op in peers.OPERATIONS:
        wanted = cases(op, [8, 1000], ranks=3)
        assert list(time_operation(ours, wanted)) == wanted


def test_wrong_element_is_detected(tmp_path):
    source = tmp_path / "wrong.cc"
    source.write_text(WRONG_LIBRARY)
    program = compile_loop("wrong", ["c++", "-I", SOURCES], source, tmp_path)

    def outcome(op):
        result = run([program, tmp_path / f"shared-{op}", op, 1, "400:3"])
        return result.returncode, result.output.strip()

    assert outcome("all_reduce") == (
        1,
        "rank 0: wrong result in iteration 3, block 0 of all_reduce, 400 bytes",
    )
    assert outcome("broadcast")[0] == 0


def test_failing_launcher_is_named():
    library = Library("mpich", Path("loop"), ["sh", "-c", "echo no hosts >&2; exit 3"])
    message = r"mpich: broadcast on 2 ranks failed \(exit codes \[3\]\): no hosts"
    with pytest.raises(peers.PeerError, match=message):
        time_operation(library, cases("broadcast", [8]))


def test_compiler_error_is_named(tmp_path):
    source = tmp_path / "bad.cc"
    source.write_text("#error no such thing\n")
    with pytest.raises(peers.PeerError, match=r"mpich: cannot compile bad\.cc"):
        compile_loop("mpich", ["c++"], source, tmp_path)


@pytest.fixture
def results():
    fast, slow = cases("broadcast", [8, 4096])
    return [
        peers.summarize(fast, {"ccl": [1.0], "mpich": [2.0], "openmpi": [1.0]}),
        peers.summarize(slow, {"ccl": [3.0] * 3, "mpich": [2.0] * 3, "openmpi": [9.0] * 3}),
    ]


def test_missed_goals_are_listed_with_goals(results, capsys):
    peers.print_results(results, ["ccl", "mpich", "openmpi"], goals=True)
    *_, miss, total = capsys.readouterr().out.splitlines()
    assert miss == "MISSED broadcast, float32, 2 ranks, 4 KiB: 1.50 (1.50-1.50) times mpich"
    assert total == "1 of 2 cases at or below 1.05"
    assert results[1].as_json(goals=True)["reached"] is False


def test_no_goals_without_the_option(results, capsys):
    peers.print_results(results, ["ccl", "mpich", "openmpi"], goals=False)
    printed = capsys.readouterr().out
    assert "4 KiB" in printed
    assert "MISSED" not in printed and "goal" not in printed
    assert "reached" not in results[1].as_json(goals=False)
