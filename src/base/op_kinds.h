// What kinds of operation there are, as pure functions.
#pragma once

#include "tccl/operation.h"

namespace tccl {

constexpr bool reduces(Op op) {
  return op == Op::allreduce || op == Op::reduce || op == Op::reduce_scatter ||
         op == Op::reduce_scatterv;
}
constexpr bool has_root(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter ||
         op == Op::gatherv || op == Op::scatterv;
}
constexpr bool is_point_to_point(Op op) { return op == Op::send || op == Op::recv; }

}  // namespace tccl
