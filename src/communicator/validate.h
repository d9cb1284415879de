// Refuses what makes no sense, before a byte is sent and before a sequence number is used.
#pragma once

#include <string>

#include "tccl/operation.h"

namespace tccl {

struct GroupFacts {
  int rank;
  int size;
  const std::string& name;
  std::size_t chunk_bytes;
};

/// Throws Error{invalid_argument} that names the argument.
void validate(const Operation& operation, const GroupFacts& group);

}  // namespace tccl
