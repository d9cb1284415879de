// Operation: the arguments of a collective, send or recv. Build one with the functions below and
// pass it to a Communicator. Implemented by src/operation/operation.cc.
//
//   comm->run(tccl::allreduce(in, out, count, DType::float32, ReduceOp::sum));
//   auto work = comm->start(tccl::recv(buffer, bytes, tccl::kAnySource, /*tag=*/7));
//
// Counts are elements, except for send and recv, which move bytes. `in` may equal `out` where the
// sizes are equal (for allgather: `in` may be this rank's block of the output).
//
// Thread safety: plain values; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tccl/types.h"

namespace tccl {

enum class Op : std::uint8_t {
  barrier,
  broadcast,
  allreduce,
  reduce,
  allgather,
  gather,
  scatter,
  reduce_scatter,
  alltoall,
  allgatherv,
  gatherv,
  scatterv,
  reduce_scatterv,
  alltoallv,
  send,
  recv,
};
inline constexpr int kOpCount = 16;
TCCL_API std::string_view name_of(Op op);

/// The buffer of one rank's share of a v-collective.
struct Block {
  void* data = nullptr;
  std::size_t count = 0;
};
struct ConstBlock {
  const void* data = nullptr;
  std::size_t count = 0;
};

inline constexpr int kAnySource = -1;

/// Pointers and spans are borrowed until the operation completes.
struct Operation {
  Op op = Op::barrier;
  DType dtype = DType::uint8;
  Reduction reduction{};
  int root = -1;          // of rooted collectives; of send and recv: see peer()
  std::uint64_t tag = 0;  // of send and recv
  /// If this collective is one staging chunk of a larger collective (CCL_STAGING_BYTES): the count
  /// of the larger one (for the v-forms: of its longest block) and the index of the chunk. Both are
  /// compared between ranks, so that chunks of two different collectives are never combined.
  std::uint64_t total_count = 0;
  std::uint32_t staging_chunk_index = 0;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  std::span<const ConstBlock> in_blocks{};  // one per rank, for the v-forms
  std::span<const Block> out_blocks{};
  /// For float32 sums (sum, avg, premul_sum) of allreduce and reduce_scatter; the same on all
  /// ranks.
  WireFormat wire_format = WireFormat::by_setting;

  /// Of a send or recv: the other rank, or kAnySource.
  [[nodiscard]] int peer() const { return root; }
};

inline Operation barrier() { return {}; }
inline Operation broadcast(void* data, std::size_t count, DType dtype, int root) {
  return {
      .op = Op::broadcast, .dtype = dtype, .root = root, .in = data, .out = data, .count = count};
}
inline Operation allreduce(const void* in, void* out, std::size_t count, DType dtype, Reduction r) {
  return {
      .op = Op::allreduce, .dtype = dtype, .reduction = r, .in = in, .out = out, .count = count};
}
/// `out` is written on the root only.
inline Operation reduce(const void* in, void* out, std::size_t count, DType dtype, Reduction r,
                        int root) {
  return {.op = Op::reduce,
          .dtype = dtype,
          .reduction = r,
          .root = root,
          .in = in,
          .out = out,
          .count = count};
}
/// `count` elements from each rank; `out` holds size * count.
inline Operation allgather(const void* in, void* out, std::size_t count, DType dtype) {
  return {.op = Op::allgather, .dtype = dtype, .in = in, .out = out, .count = count};
}
inline Operation gather(const void* in, void* out, std::size_t count, DType dtype, int root) {
  return {.op = Op::gather, .dtype = dtype, .root = root, .in = in, .out = out, .count = count};
}
/// `in` holds size * count elements and is read on the root only.
inline Operation scatter(const void* in, void* out, std::size_t count, DType dtype, int root) {
  return {.op = Op::scatter, .dtype = dtype, .root = root, .in = in, .out = out, .count = count};
}
/// `in` holds size * count elements, `out` this rank's `count`.
inline Operation reduce_scatter(const void* in, void* out, std::size_t count, DType dtype,
                                Reduction r) {
  return {.op = Op::reduce_scatter,
          .dtype = dtype,
          .reduction = r,
          .in = in,
          .out = out,
          .count = count};
}
inline Operation alltoall(const void* in, void* out, std::size_t count, DType dtype) {
  return {.op = Op::alltoall, .dtype = dtype, .in = in, .out = out, .count = count};
}

/// `out[r]` receives rank r's data; this rank sends out[rank].count elements of `in`.
/// Every rank passes the same counts.
inline Operation allgatherv(const void* in, std::span<const Block> out, DType dtype) {
  return {.op = Op::allgatherv, .dtype = dtype, .in = in, .out_blocks = out};
}
/// `out` is read on the root only; its counts must equal what the ranks send.
inline Operation gatherv(ConstBlock in, std::span<const Block> out, DType dtype, int root) {
  return {.op = Op::gatherv,
          .dtype = dtype,
          .root = root,
          .in = in.data,
          .count = in.count,
          .out_blocks = out};
}
inline Operation scatterv(std::span<const ConstBlock> in, Block out, DType dtype, int root) {
  return {.op = Op::scatterv,
          .dtype = dtype,
          .root = root,
          .out = out.data,
          .count = out.count,
          .in_blocks = in};
}
/// `in[r]` is this rank's contribution to rank r's result; every rank passes the same counts.
inline Operation reduce_scatterv(std::span<const ConstBlock> in, void* out, DType dtype,
                                 Reduction r) {
  return {.op = Op::reduce_scatterv, .dtype = dtype, .reduction = r, .out = out, .in_blocks = in};
}
/// `in[r]` goes to rank r, `out[r]` comes from rank r.
inline Operation alltoallv(std::span<const ConstBlock> in, std::span<const Block> out,
                           DType dtype) {
  return {.op = Op::alltoallv, .dtype = dtype, .in_blocks = in, .out_blocks = out};
}

inline Operation send(const void* data, std::size_t bytes, int destination, std::uint64_t tag = 0) {
  return {.op = Op::send, .root = destination, .tag = tag, .in = data, .count = bytes};
}
inline Operation recv(void* data, std::size_t bytes, int source, std::uint64_t tag = 0) {
  return {.op = Op::recv, .root = source, .tag = tag, .out = data, .count = bytes};
}

}  // namespace tccl
