// What a rank says about the collective it has begun. Ranks compare records before they touch each
// other's data, so a disagreement is an error that names both sides, never garbage or a hang.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tccl/operation.h"

namespace tccl {

struct alignas(64) OpRecord {
  std::uint32_t sequence = 0;
  Op op = Op::barrier;
  DType dtype = DType::uint8;
  ReduceOp reduction = ReduceOp::sum;
  std::uint8_t algorithm = 0;  // index into the registry
  std::int32_t root = -1;
  WireFormat wire_format = WireFormat::same;
  std::uint32_t piece = 0;
  std::uint64_t whole_count = 0;  // 0: it is no piece
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  // of the v-forms whose counts all ranks know
  /// Digest of this record and, chained, of all before it: operations that do not meet (a broadcast
  /// has no reason to wait for its leaves) are caught at the next one that does.
  std::uint64_t chain = 0;
  double factor = 1.0;  // premul_sum; may differ between ranks and is not part of the digest
};
static_assert(sizeof(OpRecord) == 64);

std::uint64_t mix(std::uint64_t hash, std::uint64_t value);
/// The chain value of `record` after `previous`.
std::uint64_t chained(std::uint64_t previous, const OpRecord& record);
/// Whether it can be described: what comes from the network may be anything.
bool is_valid(const OpRecord& record);
/// "allreduce(count 8, float32, sum, algorithm direct)"
std::string describe(const OpRecord& record, std::string_view algorithm_name);

}  // namespace tccl
