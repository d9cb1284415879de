#include "shape.h"

#include <algorithm>

#include "random.h"

namespace conformance {

using tccl::Op;

namespace {

constexpr std::uint64_t kSpreadStream = 6;
using Counts = std::vector<std::size_t>;

bool is_v_form(Op op) { return op >= Op::allgatherv && op <= Op::alltoallv; }

/// Count of the `item`-th of `items` blocks, the same on every rank.
std::size_t spread_count(std::uint64_t seed, const Case& one, int items, int item) {
  Random random({seed, kSpreadStream, one.index});
  const auto hot = static_cast<int>(random.below(static_cast<std::uint64_t>(items)));
  switch (one.spread) {
    case Spread::even:
      return one.count;
    case Spread::one_only:
      return item == hot ? one.count : 0;
    case Spread::growing:
      return one.count + static_cast<std::size_t>(item % 5);
    case Spread::alternating:
      return (item + hot) % 2 == 0 ? one.count : 0;
    case Spread::random:
      break;
  }
  Random own({seed, kSpreadStream, one.index, static_cast<std::uint64_t>(item)});
  return static_cast<std::size_t>(own.below(one.count + 1));
}

std::size_t block_count(std::uint64_t seed, const Case& one, int size, int block) {
  return is_v_form(one.op) ? spread_count(seed, one, size, block) : one.count;
}

/// What `from` sends to `to` in an alltoall.
std::size_t pair_count(std::uint64_t seed, const Case& one, int size, int from, int to) {
  if (!is_v_form(one.op)) return one.count;
  return spread_count(seed, one, size * size, from * size + to);
}

Counts all_blocks(std::uint64_t seed, const Case& one, int size) {
  Counts counts;
  for (int block = 0; block < size; ++block) counts.push_back(block_count(seed, one, size, block));
  return counts;
}

}  // namespace

Counts input_counts(std::uint64_t seed, const Case& one, int size, int rank) {
  const bool is_root = rank == one.root(size);
  Counts counts;
  switch (one.op) {
    case Op::barrier:
      return {};
    case Op::broadcast:
      return is_root ? Counts{one.count} : Counts{};
    case Op::scatter:
    case Op::scatterv:
      return is_root ? all_blocks(seed, one, size) : Counts{};
    case Op::reduce_scatter:
    case Op::reduce_scatterv:
      return all_blocks(seed, one, size);
    case Op::alltoall:
    case Op::alltoallv:
      for (int to = 0; to < size; ++to) counts.push_back(pair_count(seed, one, size, rank, to));
      return counts;
    default:
      return {block_count(seed, one, size, rank)};
  }
}

Counts output_counts(std::uint64_t seed, const Case& one, int size, int rank) {
  const bool is_root = rank == one.root(size);
  Counts counts;
  switch (one.op) {
    case Op::barrier:
      return {};
    case Op::reduce:
      return is_root || !one.null_if_unused ? Counts{one.count} : Counts{};
    case Op::gather:
      return is_root || !one.null_if_unused ? all_blocks(seed, one, size) : Counts{};
    case Op::gatherv:
      return is_root ? all_blocks(seed, one, size) : Counts{};
    case Op::allgather:
    case Op::allgatherv:
      return all_blocks(seed, one, size);
    case Op::alltoall:
    case Op::alltoallv:
      for (int from = 0; from < size; ++from) {
        counts.push_back(pair_count(seed, one, size, from, rank));
      }
      return counts;
    default:
      return {block_count(seed, one, size, rank)};
  }
}

bool has_scattered_input(Op op) {
  return op == Op::scatterv || op == Op::reduce_scatterv || op == Op::alltoallv;
}

bool has_scattered_output(Op op) {
  return op == Op::allgatherv || op == Op::gatherv || op == Op::alltoallv;
}

}  // namespace conformance
