// Validation of an operation's arguments, before anything is sent and before the operation takes a
// sequence number.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "tccl/operation.h"

namespace tccl {

/// What an operation is checked against: ranks and sizes of its group.
struct ValidationLimits {
  int rank;
  int size;
  const std::string& name;
  std::size_t chunk_bytes;
};

/// Throws Error{invalid_argument} that names the argument.
void validate(const Operation& operation, const ValidationLimits& limits);

}  // namespace tccl
