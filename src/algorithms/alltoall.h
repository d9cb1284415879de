// Gather, scatter and all-to-all as one thing: which pairs of ranks have which bytes for each
// other.
#pragma once

#include "algorithms/task.h"

namespace tccl {

/// Whether `from` has something for `to`.
inline bool takes_part(const CollectiveTask& task, int from, int to) {
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

/// A gather has one input and a scatter one output; the others have one per rank.
inline std::span<const std::byte> outgoing(const CollectiveTask& task, int to) {
  const Op op = task.operation().op;
  if (op == Op::gather || op == Op::gatherv) return {task.in(), task.bytes()};
  return task.input_for(to);
}
inline std::span<std::byte> incoming(const CollectiveTask& task, int from) {
  const Op op = task.operation().op;
  if (op == Op::scatter || op == Op::scatterv) return {task.out(), task.bytes()};
  return task.output_from(from);
}

}  // namespace tccl
