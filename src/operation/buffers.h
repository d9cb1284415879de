// Which memory an operation uses on this rank, as far as another operation may conflict with it.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "tccl/operation.h"

namespace tccl {

inline bool disjoint(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less_equal<> before;  // defined for unrelated pointers, unlike <=
  return before(a.data() + a.size(), b.data()) || before(b.data() + b.size(), a.data());
}

/// Whether one of two collectives may write memory that the other one reads or writes. A list of
/// blocks counts as one range from its first byte to its last, so the answer may be true for blocks
/// that only lie between each other. `ranks`: size of the group.
bool may_conflict(const Operation& a, const Operation& b, int ranks);

}  // namespace tccl
