// Refuses what makes no sense, before a byte is sent and before a sequence number is used.
#pragma once

#include <string>

#include "tccl/operation.h"

namespace tccl {

/// Throws Error{invalid_argument} that names the argument.
void validate(const Operation& operation, int rank, int size, const std::string& group);

}  // namespace tccl
