// Gather, scatter and all-to-all in one form: which pairs of ranks exchange which bytes.
// Thread safety: pure functions.
#pragma once

#include "algorithms/task.h"

namespace tccl {

/// Whether `from` sends to `to` in this operation.
inline bool sends_to(const CollectiveTask& task, int from, int to) {
  switch (task.operation().op) {
    case Op::gather:
    case Op::gatherv:
      return to == task.root();
    case Op::scatter:
    case Op::scatterv:
      return from == task.root();
    default:
      return true;
  }
}

/// This rank's data for `to`. A gather has one input, the other operations one per rank.
inline std::span<const std::byte> outgoing(const CollectiveTask& task, int to) {
  const Op op = task.operation().op;
  if (op == Op::gather || op == Op::gatherv) return {task.in(), task.bytes()};
  return task.input_for(to);
}
/// Where data from `from` goes. A scatter has one output, the other operations one per rank.
inline std::span<std::byte> incoming(const CollectiveTask& task, int from) {
  const Op op = task.operation().op;
  if (op == Op::scatter || op == Op::scatterv) return {task.out(), task.bytes()};
  return task.output_from(from);
}

}  // namespace tccl
