// Properties of each operation.
// Thread safety: pure functions.
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
/// The v-collectives in which each rank passes counts of its own: algorithms compare them pair by
/// pair, because they are not in the record.
constexpr bool has_per_rank_counts(Op op) {
  return op == Op::gatherv || op == Op::scatterv || op == Op::alltoallv;
}
/// The v-collectives in which every rank passes the same counts.
constexpr bool has_shared_counts(Op op) {
  return op == Op::allgatherv || op == Op::reduce_scatterv;
}
/// Every rank needs data or the arrival of every other rank: none completes if one does not join.
constexpr bool needs_every_rank(Op op) {
  return op == Op::barrier || op == Op::allreduce || op == Op::allgather || op == Op::allgatherv ||
         op == Op::reduce_scatter || op == Op::reduce_scatterv || op == Op::alltoall ||
         op == Op::alltoallv;
}
/// The root needs data of every other rank, and the others need nothing.
constexpr bool only_root_receives(Op op) {
  return op == Op::reduce || op == Op::gather || op == Op::gatherv;
}
/// The other ranks need data of the root alone.
constexpr bool only_root_sends(Op op) {
  return op == Op::broadcast || op == Op::scatter || op == Op::scatterv;
}
constexpr bool is_point_to_point(Op op) { return op == Op::send || op == Op::recv; }

}  // namespace tccl
