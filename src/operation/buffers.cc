#include "operation/buffers.h"

#include <algorithm>

namespace tccl {
namespace {

using Range = std::span<const std::byte>;

template <class AnyBlock>
Range range_of(std::span<const AnyBlock> blocks, std::size_t element_bytes) {
  Range all;
  for (const AnyBlock& block : blocks) {
    const Range next(static_cast<const std::byte*>(block.data), block.count * element_bytes);
    if (next.empty()) continue;
    const std::byte* begin = all.empty() ? next.data() : std::min(all.data(), next.data());
    const std::byte* end = all.empty()
                               ? next.data() + next.size()
                               : std::max(all.data() + all.size(), next.data() + next.size());
    all = {begin, end};
  }
  return all;
}

std::size_t longest(std::span<const Block> blocks) {
  return blocks.empty() ? 0 : std::ranges::max(blocks, {}, &Block::count).count;
}

bool has_input_per_rank(Op op) {
  return op == Op::reduce_scatter || op == Op::alltoall || op == Op::scatter;
}
bool has_output_per_rank(Op op) {
  return op == Op::allgather || op == Op::alltoall || op == Op::gather;
}

Range input_of(const Operation& o, int ranks) {
  if (!o.in_blocks.empty()) return range_of(o.in_blocks, size_of(o.dtype));
  if (o.in == nullptr) return {};
  // The input of an allgatherv is as long as one of the blocks.
  const std::size_t count = o.op == Op::allgatherv ? longest(o.out_blocks) : o.count;
  const std::size_t blocks = has_input_per_rank(o.op) ? static_cast<std::size_t>(ranks) : 1;
  return {static_cast<const std::byte*>(o.in), count * blocks * size_of(o.dtype)};
}

Range output_of(const Operation& o, int ranks) {
  if (!o.out_blocks.empty()) return range_of(o.out_blocks, size_of(o.dtype));
  if (o.out == nullptr) return {};
  // The output of a reduce_scatterv is as long as one of the blocks.
  std::size_t count = o.count;
  for (const ConstBlock& block : o.in_blocks) count = std::max(count, block.count);
  const std::size_t blocks = has_output_per_rank(o.op) ? static_cast<std::size_t>(ranks) : 1;
  return {static_cast<const std::byte*>(o.out), count * blocks * size_of(o.dtype)};
}

bool writes_into(const Operation& writer, const Operation& other, int ranks) {
  const Range written = output_of(writer, ranks);
  return !disjoint(written, input_of(other, ranks)) || !disjoint(written, output_of(other, ranks));
}

}  // namespace

bool may_conflict(const Operation& a, const Operation& b, int ranks) {
  return writes_into(a, b, ranks) || writes_into(b, a, ranks);
}

}  // namespace tccl
