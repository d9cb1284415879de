"""`torch-ccl bench --peers` without the peers: our own program, the loop's checks, the report."""

import pytest
from support.commands import run
from torch_ccl.cli import peers

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
    return peers.build_ours(tmp_path_factory.mktemp("peers"))


@pytest.mark.timeout(60)
def test_times_of_every_operation(ours):
    for op in peers.OPERATIONS:
        times = peers.time_operation(ours, 2, op, [8, 4096])
        assert list(times) == [8, 4096], op
        assert all(len(us) == 200 and min(us) > 0 for us in times.values()), op


def test_three_ranks_and_a_size_that_does_not_divide(ours):
    for op in peers.OPERATIONS:
        assert list(peers.time_operation(ours, 3, op, [8, 1000])) == [8, 1000]


def test_wrong_element_is_seen(tmp_path):
    source = tmp_path / "wrong.cc"
    source.write_text(WRONG_LIBRARY)
    include = ["-I", str(peers.SOURCES)]
    program = peers.build("wrong", ["c++", *include], source, tmp_path)

    def outcome(op):
        result = run([program, tmp_path / f"shared-{op}", op, 1, "400:3"])
        return result.returncode, result.output.strip()

    assert outcome("all_reduce") == (
        1,
        "rank 0: wrong result in iteration 3, block 0 of all_reduce, 400 bytes",
    )
    assert outcome("broadcast")[0] == 0


def test_failing_launcher_is_named():
    program = peers.Program("mpich", "loop", ["sh", "-c", "echo no hosts >&2; exit 3"])
    with pytest.raises(peers.PeerError, match=r"mpich: broadcast on 2 ranks.*\[3\].*no hosts"):
        peers.time_operation(program, 2, "broadcast", [8])


def test_compiler_error_is_named(tmp_path):
    source = tmp_path / "bad.cc"
    source.write_text("#error no such thing\n")
    with pytest.raises(peers.PeerError, match="mpich: cannot compile"):
        peers.build("mpich", ["c++"], source, tmp_path)


def test_report_lists_misses(capsys):
    slow = peers.make_row(
        "broadcast", 4096, 2, {"ccl": [3.0] * 3, "mpich": [2.0] * 3, "openmpi": [9.0] * 3}
    )
    fast = peers.make_row("broadcast", 8, 2, {"ccl": [1.0], "mpich": [2.0], "openmpi": [1.0]})
    peers.print_report([fast, slow], ["ccl", "mpich", "openmpi"])
    *_, miss, total = capsys.readouterr().out.splitlines()
    assert miss == "MISSED broadcast, 2 ranks, 4 KiB: 1.50 (1.50-1.50) times mpich"
    assert total == "1 of 2 cases at or below 1.05"
