#include "operation/op_record.h"

#include "base/format.h"
#include "operation/op_traits.h"

namespace tccl {
namespace {

/// Below this size compression does not save time.
constexpr std::size_t kMinCompressedBytes = std::size_t{32} << 10;

/// Only float32 sums can be compressed, and only those whose result goes to all ranks.
WireFormat wire_format_of(const Operation& o, std::size_t elements, WireFormat default_format) {
  const ReduceOp op = o.reduction.op;
  const bool compresses =
      reduces(o.op) && o.op != Op::reduce && o.dtype == DType::float32 &&
      (op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum) &&
      elements * sizeof(float) >= kMinCompressedBytes;
  if (!compresses) return WireFormat::uncompressed;
  return o.wire_format == WireFormat::by_setting ? default_format : o.wire_format;
}

template <class Blocks>
void add_counts(const Blocks& blocks, OpRecord& record) {
  std::uint64_t hash = 1;
  for (const auto& block : blocks) {
    record.count += block.count;
    hash = mix(hash, block.count);
  }
  record.counts_hash = hash == 1 ? 0 : hash;
}

/// Sets the count that all ranks know: the count of one rank; for allgatherv and reduce_scatterv
/// the sum of the counts.
void set_counts(const Operation& o, OpRecord& record) {
  if (o.op == Op::allgatherv) return add_counts(o.out_blocks, record);
  if (o.op == Op::reduce_scatterv) return add_counts(o.in_blocks, record);
  if (!has_per_rank_counts(o.op)) record.count = o.count;
}

}  // namespace

OpRecord record_of(const Operation& operation, int ranks, WireFormat default_format) {
  OpRecord record;
  record.op = operation.op;
  record.dtype = operation.dtype;
  record.reduction = operation.reduction.op;
  record.factor = operation.reduction.factor;
  record.root = operation.root;
  record.total_count = operation.total_count;
  record.staging_chunk_index = operation.staging_chunk_index;
  set_counts(operation, record);
  // The count of a reduce_scatter is that of one rank.
  const int parts = record.op == Op::reduce_scatter ? ranks : 1;
  const std::size_t elements = record.count * static_cast<std::size_t>(parts);
  record.wire_format = wire_format_of(operation, elements, default_format);
  return record;
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  // The finaliser of splitmix64: every bit of the input affects every bit of the output.
  std::uint64_t z = hash + 0x9e3779b97f4a7c15 + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::uint64_t next_digest(std::uint64_t previous, const OpRecord& record) {
  std::uint64_t hash = mix(previous, record.sequence);
  hash = mix(hash, static_cast<std::uint64_t>(record.op) << 24 |
                       static_cast<std::uint64_t>(record.dtype) << 16 |
                       static_cast<std::uint64_t>(record.reduction) << 8 | record.algorithm);
  hash = mix(hash, std::uint64_t{static_cast<std::uint32_t>(record.root)} << 8 |
                       static_cast<std::uint64_t>(record.wire_format));
  hash = mix(hash, record.count);
  if (record.total_count != 0)
    hash = mix(mix(hash, record.total_count), record.staging_chunk_index);
  return mix(hash, record.counts_hash);
}

bool is_valid(const OpRecord& record) {
  return static_cast<int>(record.op) < kOpCount && static_cast<int>(record.dtype) < kDTypeCount &&
         static_cast<int>(record.reduction) < kReduceOpCount &&
         record.wire_format <= WireFormat::int8;
}

std::string describe(const OpRecord& record, std::string_view algorithm_name) {
  std::string text = formatted("{}(", name_of(record.op));
  if (record.op != Op::barrier && !has_per_rank_counts(record.op))
    text += formatted("count {}{}, ", record.count, has_shared_counts(record.op) ? " in all" : "");
  if (record.total_count != 0)
    text += formatted(
        "chunk {} of a staged collective ({}: {} elements), ", record.staging_chunk_index + 1,
        has_shared_counts(record.op) ? "longest block" : "in all", record.total_count);
  if (record.op != Op::barrier) text += formatted("{}, ", name_of(record.dtype));
  if (reduces(record.op)) text += formatted("{}, ", name_of(record.reduction));
  if (record.root >= 0) text += formatted("root {}, ", record.root);
  if (record.counts_hash != 0)
    text += formatted("sizes of the list with hash {:04x}, ", record.counts_hash & 0xffff);
  if (record.wire_format != WireFormat::uncompressed)
    text += formatted("{} on the wire, ", name_of(record.wire_format));
  return text + formatted("algorithm {})", algorithm_name);
}

}  // namespace tccl
