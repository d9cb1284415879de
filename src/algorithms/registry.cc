#include "algorithms/registry.h"

namespace tccl {
namespace {

// Measured thresholds: see docs/performance.md.
/// one_shot reads (P - 1) times the data on every rank, two_shot less than twice the data.
constexpr DefaultRule kLargeData[] = {{.from_bytes = std::size_t{1} << 20, .from_ranks = 6}};
/// Converting float8 costs more than the second synchronisation, so ranks share the arithmetic.
constexpr DefaultRule kLargeDataOrFloat8[] = {
    kLargeData[0], {.from_bytes = 1024, .from_ranks = 2, .float8_only = true}};
/// Between hosts the bytes sent soon cost more than the number of messages.
constexpr DefaultRule kLargeDataBetweenHosts[] = {
    {.from_bytes = std::size_t{32} << 10, .from_ranks = 2}};

constexpr Algorithm kAlgorithms[] = {
    {Op::barrier, "one_shot", "everyone posts, everyone looks at all", barrier_one_shot},
    {Op::broadcast, "one_shot", "the root posts pieces, all others copy them", broadcast_one_shot},
    {Op::allreduce, "one_shot", "every rank reduces everything: one meeting per piece",
     allreduce_one_shot},
    {Op::allreduce, "two_shot", "each rank reduces a slice of every piece, then all copy",
     allreduce_two_shot, nullptr, kLargeDataOrFloat8},
    {Op::reduce, "one_shot", "the root reduces everything", reduce_one_shot},
    {Op::reduce, "two_shot", "each rank reduces a slice of every piece, the root copies",
     reduce_two_shot, nullptr, kLargeData},
    {Op::allgather, "one_shot", "everyone posts pieces, everyone copies them", allgather_one_shot},
    {Op::gather, "one_shot", "everyone posts pieces, the root copies them", gather_one_shot},
    {Op::scatter, "one_shot", "the root posts one piece per rank and step", scatter_one_shot},
    {Op::reduce_scatter, "one_shot", "each step carries a piece for every rank, which reduces it",
     reduce_scatter_one_shot},
    {Op::alltoall, "one_shot", "each step carries a piece for every rank", alltoall_one_shot},
    {Op::allgatherv, "one_shot", "as allgather, with a size per rank", allgather_one_shot},
    {Op::gatherv, "one_shot", "sizes go with the first piece and are checked, else as gather",
     gatherv_one_shot},
    {Op::scatterv, "one_shot", "sizes go with the first piece and are checked, else as scatter",
     scatterv_one_shot},
    {Op::reduce_scatterv, "one_shot", "as reduce_scatter, with a size per rank",
     reduce_scatter_one_shot},
    {Op::alltoallv, "one_shot", "sizes go with the first piece and are checked, else as alltoall",
     alltoallv_one_shot},
    // --- ranks on several hosts ---
    {Op::barrier, "leader_alltoall", "one rank of each host tells those of all others", nullptr,
     barrier_leader_alltoall},
    {Op::broadcast, "forward", "from host to host: by a tree if it is small, else in a chain",
     nullptr, broadcast_tree},
    {Op::allreduce, "leader_alltoall", "each host's sum goes to all others: one message's time",
     nullptr, allreduce_leader_alltoall},
    {Op::allreduce, "rails", "ranks of a host share its sum; each slice is summed on one host",
     nullptr, allreduce_rails, kLargeDataBetweenHosts},
    {Op::reduce, "rails", "as allreduce, but the sums go to the root's host", nullptr,
     reduce_rails},
    {Op::allgather, "rails", "each block goes once to every host", nullptr, allgather_rails},
    {Op::gather, "pairwise", "every pair by itself", nullptr, alltoall_pairwise},
    {Op::scatter, "pairwise", "every pair by itself", nullptr, alltoall_pairwise},
    {Op::reduce_scatter, "rails", "each host's sum for a rank goes to it", nullptr,
     reduce_scatter_rails},
    {Op::alltoall, "pairwise", "every pair by itself", nullptr, alltoall_pairwise},
    {Op::allgatherv, "rails", "as allgather, with a size per rank", nullptr, allgather_rails},
    {Op::gatherv, "pairwise", "as gather; sizes are compared", nullptr, alltoall_pairwise},
    {Op::scatterv, "pairwise", "as scatter; sizes are compared", nullptr, alltoall_pairwise},
    {Op::reduce_scatterv, "rails", "as reduce_scatter, with a size per rank", nullptr,
     reduce_scatter_rails},
    {Op::alltoallv, "pairwise", "as alltoall; sizes are compared", nullptr, alltoall_pairwise},
};

}  // namespace

std::span<const Algorithm> algorithms() { return kAlgorithms; }

const Algorithm& algorithm(std::uint8_t index) {
  return kAlgorithms[index < std::size(kAlgorithms) ? index : 0];
}

std::uint8_t index_of(const Algorithm& algorithm) {
  return static_cast<std::uint8_t>(&algorithm - kAlgorithms);
}

}  // namespace tccl
