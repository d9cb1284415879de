#include "operation/op_record.h"

#include "base/format.h"
#include "operation/op_traits.h"

namespace tccl {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  // The finaliser of splitmix64: every bit of the input reaches every bit of the output.
  std::uint64_t z = hash + 0x9e3779b97f4a7c15 + value;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::uint64_t chained(std::uint64_t previous, const OpRecord& record) {
  std::uint64_t hash = mix(previous, record.sequence);
  hash = mix(hash, static_cast<std::uint64_t>(record.op) << 24 |
                       static_cast<std::uint64_t>(record.dtype) << 16 |
                       static_cast<std::uint64_t>(record.reduction) << 8 | record.algorithm);
  hash = mix(hash, std::uint64_t{static_cast<std::uint32_t>(record.root)} << 8 |
                       static_cast<std::uint64_t>(record.wire_format));
  hash = mix(hash, record.count);
  if (record.whole_count != 0) hash = mix(mix(hash, record.whole_count), record.piece);
  return mix(hash, record.counts_hash);
}

bool is_valid(const OpRecord& record) {
  return static_cast<int>(record.op) < kOpCount && static_cast<int>(record.dtype) < kDTypeCount &&
         static_cast<int>(record.reduction) < kReduceOpCount;
}

std::string describe(const OpRecord& record, std::string_view algorithm_name) {
  std::string text = formatted("{}(", name_of(record.op));
  if (record.op != Op::barrier && !counts_are_private(record.op))
    text += formatted("count {}{}, ", record.count, counts_are_shared(record.op) ? " in all" : "");
  if (record.whole_count != 0)
    text += formatted("piece {} of a whole of {}, ", record.piece + 1, record.whole_count);
  if (record.op != Op::barrier) text += formatted("{}, ", name_of(record.dtype));
  if (reduces(record.op)) text += formatted("{}, ", name_of(record.reduction));
  if (record.root >= 0) text += formatted("root {}, ", record.root);
  if (record.counts_hash != 0) text += formatted("counts #{:04x}, ", record.counts_hash & 0xffff);
  if (record.wire_format != WireFormat::same)
    text += formatted("{} on the wire, ", name_of(record.wire_format));
  return text + formatted("algorithm {})", algorithm_name);
}

}  // namespace tccl
