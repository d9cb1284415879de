// OpRecord: the description of one collective that ranks compare before they touch each other's
// data. Two ranks that call different operations get an error that names both calls, never wrong
// data or a hang.
// Thread safety: plain values and pure functions.
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
  WireFormat wire_format = WireFormat::uncompressed;
  std::uint32_t staging_chunk_index = 0;
  std::uint64_t total_count = 0;  // as in Operation; 0: not a chunk of a larger collective
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  // of the v-collectives whose counts are the same on all ranks
  /// Digest of this record and of all records before it. A rank may run ahead: the root of a
  /// broadcast does not wait for the other ranks. It is compared at the next operation that
  /// synchronises, and the digest then covers the operations in between.
  std::uint64_t digest = 0;
  double factor = 1.0;  // of premul_sum; may differ between ranks, so it is not in the digest
};
static_assert(sizeof(OpRecord) == 64);

std::uint64_t mix(std::uint64_t hash, std::uint64_t value);
/// The record of a collective in a group of `ranks` ranks, without sequence number, algorithm and
/// digest. `default_format` is the setting CCL_WIRE_DTYPE.
OpRecord record_of(const Operation& operation, int ranks, WireFormat default_format);
/// The digest of `record` after a record with the digest `previous`.
std::uint64_t next_digest(std::uint64_t previous, const OpRecord& record);
/// Whether describe() may be called: a record from the network may contain anything.
bool is_valid(const OpRecord& record);
/// "allreduce(count 8, float32, sum, algorithm one_shot)"
std::string describe(const OpRecord& record, std::string_view algorithm_name);

}  // namespace tccl
