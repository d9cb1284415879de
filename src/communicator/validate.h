// Validation of an operation's arguments, before anything is sent and before the operation takes a
// sequence number. Thread safety: pure.
#pragma once

#include <string>

#include "tccl/operation.h"

namespace tccl {

/// The group that an operation is validated for.
struct ValidationLimits {
  int rank;
  int size;
  const std::string& name;
  std::size_t chunk_bytes;
};

/// Throws Error{invalid_argument} that names the argument.
void validate(const Operation& operation, const ValidationLimits& group);

}  // namespace tccl
