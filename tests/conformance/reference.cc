#include "reference.h"

#include <cstring>
#include <stdexcept>

#include "formats.h"

namespace conformance {

using tccl::DType;
using tccl::Op;
using tccl::ReduceOp;

namespace {

std::vector<Bytes> same_block_of_all(const Scenario& scenario, int block) {
  std::vector<Bytes> blocks;
  for (int rank = 0; rank < scenario.size; ++rank) blocks.push_back(scenario.input(rank, block));
  return blocks;
}

/// The NaN rule of MIN and MAX and of comparisons looks at components of complex numbers, too.
bool components_equal(const FloatFormat& format, const std::byte* a, const std::byte* b,
                      std::size_t element) {
  const auto bytes = static_cast<std::size_t>(format.bits) / 8;
  for (std::size_t at = 0; at < element; at += bytes) {
    const std::uint64_t left = load_code(a + at, bytes);
    const std::uint64_t right = load_code(b + at, bytes);
    if (left != right && !(is_nan(format, left) && is_nan(format, right))) return false;
  }
  return true;
}

}  // namespace

std::vector<Bytes> expected_outputs(const Scenario& scenario, int rank) {
  const bool is_root = rank == scenario.root;
  switch (scenario.op) {
    case Op::broadcast:
      return {scenario.input(scenario.root, 0)};
    case Op::allreduce:
      return {reduced(scenario, same_block_of_all(scenario, 0))};
    case Op::reduce:
      if (!is_root) return {};
      return {reduced(scenario, same_block_of_all(scenario, 0))};
    case Op::allgather:
    case Op::allgatherv:
      return same_block_of_all(scenario, 0);
    case Op::gather:
    case Op::gatherv:
      if (!is_root) return {};
      return same_block_of_all(scenario, 0);
    case Op::scatter:
    case Op::scatterv:
      return {scenario.input(scenario.root, rank)};
    case Op::reduce_scatter:
    case Op::reduce_scatterv:
      return {reduced(scenario, same_block_of_all(scenario, rank))};
    case Op::alltoall:
    case Op::alltoallv:
      return same_block_of_all(scenario, rank);
    case Op::barrier:
    case Op::send:
    case Op::recv:
      break;
  }
  return {};
}

bool reference_supports(DType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::product:
      return true;
    case ReduceOp::avg:
      return float_format(dtype) != nullptr;
    case ReduceOp::min:
    case ReduceOp::max:
      return !is_complex(dtype);
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return float_format(dtype) == nullptr;
    case ReduceOp::premul_sum:
      return dtype != DType::boolean;
  }
  return false;
}

std::optional<std::size_t> first_difference(DType dtype, std::span<const std::byte> expected,
                                            std::span<const std::byte> got, bool nan_equals_nan) {
  if (expected.size() != got.size()) throw std::logic_error("outputs of different length");
  if (expected.empty() || std::memcmp(expected.data(), got.data(), expected.size()) == 0) return {};
  const std::size_t element = element_bytes(dtype);
  const FloatFormat* format = nan_equals_nan ? float_format(dtype) : nullptr;
  for (std::size_t at = 0; at < expected.size(); at += element) {
    const std::byte* a = expected.data() + at;
    const std::byte* b = got.data() + at;
    if (std::memcmp(a, b, element) == 0) continue;
    if (format == nullptr || !components_equal(*format, a, b, element)) return at / element;
  }
  return {};
}

}  // namespace conformance
