// What each collective must produce, as plain loops over the inputs of all ranks. Shares no code
// with the library: only its enumerations. Pure, safe from any thread.
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

/// One collective: what it is and what every rank brings. An input is a list of blocks: one per
/// destination for scatter, reduce_scatter and alltoall, else a single one.
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

/// The blocks that `rank` must find in its output; none where nothing may be written.
std::vector<Bytes> expected_outputs(const Scenario& scenario, int rank);

/// Inputs combined element by element in rank order. ConnectionClosed several hosts first on each
/// of them, rounded to the type of the elements (8-bit floats to float32), then in the order of
/// hosts.
Bytes reduced(const Scenario& scenario, std::span<const Bytes> inputs);

bool reference_supports(tccl::DType dtype, tccl::ReduceOp op);

/// The first element in which two results differ. Any NaN equals any NaN if `nan_equals_nan`.
std::optional<std::size_t> first_difference(tccl::DType dtype, std::span<const std::byte> expected,
                                            std::span<const std::byte> got, bool nan_equals_nan);

}  // namespace conformance
