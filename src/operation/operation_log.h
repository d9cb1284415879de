// OperationLog: the records of a rank's last collectives. It lies in the rank's shared memory, so
// that ranks of the same host compare their calls and error messages quote both sides.
//
//   log.append(record);        // by the executor, before the first step of the operation
//   log.at(sequence).digest;    // by any rank of the host
//
// Thread safety: one writer. A reader sees a record once it has seen (acquire) a step or message of
// that operation; the writer cannot be kLength operations ahead of a reader: see shm::kSlots.
#pragma once

#include <cstdint>

#include "operation/op_record.h"

namespace tccl {

struct OperationLog {
  static constexpr std::uint32_t kLength = 16;

  void append(const OpRecord& record) { records[record.sequence % kLength] = record; }
  /// The record of that sequence number, or of one kLength operations earlier or later.
  [[nodiscard]] const OpRecord& at(std::uint32_t sequence) const {
    return records[sequence % kLength];
  }
  [[nodiscard]] bool contains(std::uint32_t sequence) const {
    return at(sequence).sequence == sequence;
  }

  OpRecord records[kLength];
};

}  // namespace tccl
