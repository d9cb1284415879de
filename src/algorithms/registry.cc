#include "algorithms/registry.h"

namespace tccl {
namespace {

constexpr Algorithm kAlgorithms[] = {
    {Op::barrier, "direct", "everyone posts, everyone looks at all", barrier_direct},
    {Op::broadcast, "direct", "the root posts pieces, all others copy them", broadcast_direct},
    {Op::allreduce, "direct", "every rank reduces everything: one meeting per piece",
     allreduce_direct},
    {Op::allreduce, "pipelined", "each rank reduces a slice of every piece, then all copy",
     allreduce_pipelined},
    {Op::reduce, "direct", "the root reduces everything", reduce_direct},
    {Op::reduce, "pipelined", "each rank reduces a slice of every piece, the root copies",
     reduce_pipelined},
    {Op::allgather, "direct", "everyone posts pieces, everyone copies them", allgather_direct},
    {Op::gather, "direct", "everyone posts pieces, the root copies them", gather_direct},
    {Op::scatter, "direct", "the root posts one piece per rank and step", scatter_direct},
    {Op::reduce_scatter, "direct", "each step carries a piece for every rank, which reduces it",
     reduce_scatter_direct},
    {Op::alltoall, "direct", "each step carries a piece for every rank", alltoall_direct},
    {Op::allgatherv, "direct", "as allgather, with a size per rank", allgather_direct},
    {Op::gatherv, "direct", "sizes go with the first piece and are checked, else as gather",
     gatherv_direct},
    {Op::scatterv, "direct", "sizes go with the first piece and are checked, else as scatter",
     scatterv_direct},
    {Op::reduce_scatterv, "direct", "as reduce_scatter, with a size per rank",
     reduce_scatter_direct},
    {Op::alltoallv, "direct", "sizes go with the first piece and are checked, else as alltoall",
     alltoallv_direct},
    // --- ranks on several hosts ---
    {Op::barrier, "exchange", "one rank of each host tells those of all others", nullptr,
     barrier_exchange},
    {Op::broadcast, "relay", "from host to host: by a tree if it is small, else in a chain",
     nullptr, broadcast_relay},
    {Op::allreduce, "exchange", "each host's sum goes to all others: one message's time", nullptr,
     allreduce_exchange},
    {Op::allreduce, "lanes", "ranks of a host share its sum; each slice is summed on one host",
     nullptr, allreduce_lanes},
    {Op::reduce, "lanes", "as allreduce, but the sums go to the root's host", nullptr,
     reduce_lanes},
    {Op::allgather, "lanes", "each block goes once to every host", nullptr, allgather_lanes},
    {Op::gather, "pairs", "every pair by itself", nullptr, exchange_pairs},
    {Op::scatter, "pairs", "every pair by itself", nullptr, exchange_pairs},
    {Op::reduce_scatter, "lanes", "each host's sum for a rank goes to it", nullptr,
     reduce_scatter_lanes},
    {Op::alltoall, "pairs", "every pair by itself", nullptr, exchange_pairs},
    {Op::allgatherv, "lanes", "as allgather, with a size per rank", nullptr, allgather_lanes},
    {Op::gatherv, "pairs", "as gather; sizes are compared", nullptr, exchange_pairs},
    {Op::scatterv, "pairs", "as scatter; sizes are compared", nullptr, exchange_pairs},
    {Op::reduce_scatterv, "lanes", "as reduce_scatter, with a size per rank", nullptr,
     reduce_scatter_lanes},
    {Op::alltoallv, "pairs", "as alltoall; sizes are compared", nullptr, exchange_pairs},
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
