#include "algorithms/registry.h"

namespace tccl {
namespace {

/// Each operation needs a row with this rule, on one host and over several (tests/unit/base_test.cc).
constexpr Algorithm::Rule kAlways[] = {{}};
// Measured thresholds: see docs/dev/measurements.md.
/// one_shot reads (P - 1) times the data on every rank, two_shot less than twice the data.
constexpr Algorithm::Rule kLargeData[] = {{.from_bytes = std::size_t{1} << 20, .from_ranks = 6}};
/// Converting float8 costs more than the second synchronisation, so ranks share the arithmetic.
constexpr Algorithm::Rule kLargeDataOrFloat8[] = {
    kLargeData[0], {.from_bytes = 1024, .from_ranks = 2, .float8_only = true}};
/// Between hosts, from 32 KiB on the bytes cost more than the messages.
constexpr Algorithm::Rule kLargeDataBetweenHosts[] = {
    {.from_bytes = std::size_t{32} << 10, .from_ranks = 2}};

constexpr Algorithm kAlgorithms[] = {
    // --- all ranks on one host ---
    {Op::barrier, "one_shot", "every rank posts one step and awaits all others", barrier_one_shot,
     nullptr, kAlways},
    {Op::broadcast, "one_shot", "the root posts chunks, all other ranks copy them",
     broadcast_one_shot, nullptr, kAlways},
    {Op::allreduce, "one_shot",
     "every rank reduces the whole message: one synchronisation per chunk", allreduce_one_shot,
     nullptr, kAlways},
    {Op::allreduce, "two_shot",
     "pipelined reduce-scatter and all-gather: each rank reduces one slice of every chunk",
     allreduce_two_shot, nullptr, kLargeDataOrFloat8},
    {Op::reduce, "one_shot", "the root reduces the whole message", reduce_one_shot, nullptr,
     kAlways},
    {Op::reduce, "two_shot",
     "pipelined reduce-scatter: each rank reduces one slice of every chunk, the root copies them",
     reduce_two_shot, nullptr, kLargeData},
    {Op::allgather, "one_shot", "every rank posts chunks, every rank copies them",
     allgather_one_shot, nullptr, kAlways},
    {Op::gather, "one_shot", "every rank posts chunks, the root copies them", gather_one_shot,
     nullptr, kAlways},
    {Op::scatter, "one_shot", "the root posts one chunk per rank and step", scatter_one_shot,
     nullptr, kAlways},
    {Op::reduce_scatter, "one_shot",
     "each step carries one chunk per rank, which that rank reduces", reduce_scatter_one_shot,
     nullptr, kAlways},
    {Op::alltoall, "one_shot", "each step carries one chunk per destination", alltoall_one_shot,
     nullptr, kAlways},
    {Op::allgatherv, "one_shot", "as allgather, with one size per rank", allgather_one_shot,
     nullptr, kAlways},
    {Op::gatherv, "one_shot", "as gather; the first step carries the sizes, which are checked",
     gatherv_one_shot, nullptr, kAlways},
    {Op::scatterv, "one_shot", "as scatter; the first step carries the sizes, which are checked",
     scatterv_one_shot, nullptr, kAlways},
    {Op::reduce_scatterv, "one_shot", "as reduce_scatter, with one size per rank",
     reduce_scatter_one_shot, nullptr, kAlways},
    {Op::alltoallv, "one_shot", "as alltoall; the first step carries the sizes, which are checked",
     alltoallv_one_shot, nullptr, kAlways},
    // --- ranks on several hosts ---
    {Op::barrier, "leader_allgather", "one leader per host sends a message to all other leaders",
     nullptr, barrier_leader_allgather, kAlways},
    {Op::broadcast, "tree",
     "binomial tree of hosts for small messages, chain of hosts for large ones", nullptr,
     broadcast_tree, kAlways},
    {Op::allreduce, "leader_allgather",
     "one leader per host sends its host's sum to all other leaders: latency of one message",
     nullptr, allreduce_leader_allgather, kAlways},
    {Op::allreduce, "rails",
     "hierarchical reduce-scatter and all-gather; every local rank sends one slice", nullptr,
     allreduce_rails, kLargeDataBetweenHosts},
    {Op::reduce, "rails", "as allreduce, but only the root's host receives the result", nullptr,
     reduce_rails, kAlways},
    {Op::allgather, "rails", "each block crosses the network once per other host", nullptr,
     allgather_rails, kAlways},
    {Op::gather, "linear", "ranks on different hosts send directly to the root", nullptr,
     alltoall_linear, kAlways},
    {Op::scatter, "linear", "the root sends directly to ranks on other hosts", nullptr,
     alltoall_linear, kAlways},
    {Op::reduce_scatter, "rails", "each host sends its sum of a rank's block to that rank", nullptr,
     reduce_scatter_rails, kAlways},
    {Op::alltoall, "linear", "ranks on different hosts exchange directly", nullptr, alltoall_linear,
     kAlways},
    {Op::allgatherv, "rails", "as allgather, with one size per rank", nullptr, allgather_rails,
     kAlways},
    {Op::gatherv, "linear", "as gather; sizes are checked", nullptr, alltoall_linear, kAlways},
    {Op::scatterv, "linear", "as scatter; sizes are checked", nullptr, alltoall_linear, kAlways},
    {Op::reduce_scatterv, "rails", "as reduce_scatter, with one size per rank", nullptr,
     reduce_scatter_rails, kAlways},
    {Op::alltoallv, "linear", "as alltoall; sizes are checked", nullptr, alltoall_linear, kAlways},
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
