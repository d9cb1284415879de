// Gather, scatter and all-to-all as one thing: which pairs of ranks have which bytes for each
// other.
#pragma once

#include "algorithms/call.h"

namespace tccl {

/// Whether `from` has something for `to`.
inline bool takes_part(const Call& call, int from, int to) {
  switch (call.operation().op) {
    case Op::gather:
    case Op::gatherv:
      return to == call.root();
    case Op::scatter:
    case Op::scatterv:
      return from == call.root();
    default:
      return true;
  }
}

/// A gather has one input and a scatter one output; the others have one per rank.
inline std::span<const std::byte> outgoing(const Call& call, int to) {
  const Op op = call.operation().op;
  if (op == Op::gather || op == Op::gatherv) return {call.in(), call.bytes()};
  return call.input_for(to);
}
inline std::span<std::byte> incoming(const Call& call, int from) {
  const Op op = call.operation().op;
  if (op == Op::scatter || op == Op::scatterv) return {call.out(), call.bytes()};
  return call.output_from(from);
}

}  // namespace tccl
