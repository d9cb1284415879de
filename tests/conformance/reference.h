// Reference implementation of the collectives: plain loops over the inputs of all ranks. Shares
// only enumerations with the library. Pure functions, thread-safe.
//
//   Scenario s{.op = Op::allreduce, .dtype = DType::float16, .reduction = ReduceOp::sum, .size =
//   4}; s.input = [&](int rank, int) { return bytes_of(rank); }; assert(out == expected_outputs(s,
//   my_rank)[0]);
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tccl/operation.h"
#include "tccl/types.h"

namespace conformance {

using Bytes = std::vector<std::byte>;

/// One collective and the inputs of all ranks. An input is a list of blocks: one per destination
/// for scatter, reduce_scatter and alltoall, otherwise one.
struct Scenario {
  tccl::Op op = tccl::Op::barrier;
  tccl::DType dtype = tccl::DType::uint8;
  tccl::ReduceOp reduction = tccl::ReduceOp::sum;
  int size = 1;
  int root = 0;
  std::vector<double> factors;  // one per rank, for premul_sum
  std::vector<int> hosts;       // one per rank, if they are on several
  std::function<Bytes(int rank, int block)> input;
};

/// The expected output blocks of `rank`; empty if the rank gets no output.
std::vector<Bytes> expected_outputs(const Scenario& scenario, int rank);

/// Inputs reduced element by element in rank order. Over several hosts: first on each host, rounded
/// to the element type (8-bit floats: to float32), then over hosts in host order.
Bytes reduced(const Scenario& scenario, std::span<const Bytes> inputs);

bool reference_supports(tccl::DType dtype, tccl::ReduceOp op);

/// The first element in which two results differ. Any NaN equals any NaN if `nan_equals_nan`.
std::optional<std::size_t> first_difference(tccl::DType dtype, std::span<const std::byte> expected,
                                            std::span<const std::byte> got, bool nan_equals_nan);

}  // namespace conformance
