// Tables that map torch's element types and reductions to those of tccl, one row each.
// Thread safety: pure functions.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tccl/types.h"

namespace torch_ccl {

struct DTypeRow {
  at::ScalarType torch;
  tccl::DType tccl;
};

inline constexpr DTypeRow kDTypes[] = {
    {at::kDouble, tccl::DType::float64},
    {at::kFloat, tccl::DType::float32},
    {at::kHalf, tccl::DType::float16},
    {at::kBFloat16, tccl::DType::bfloat16},
    {at::kFloat8_e4m3fn, tccl::DType::float8_e4m3fn},
    {at::kFloat8_e5m2, tccl::DType::float8_e5m2},
    {at::kFloat8_e4m3fnuz, tccl::DType::float8_e4m3fnuz},
    {at::kFloat8_e5m2fnuz, tccl::DType::float8_e5m2fnuz},
    {at::kChar, tccl::DType::int8},
    {at::kShort, tccl::DType::int16},
    {at::kInt, tccl::DType::int32},
    {at::kLong, tccl::DType::int64},
    {at::kByte, tccl::DType::uint8},
    {at::kUInt16, tccl::DType::uint16},
    {at::kUInt32, tccl::DType::uint32},
    {at::kUInt64, tccl::DType::uint64},
    {at::kBool, tccl::DType::boolean},
    {at::kComplexFloat, tccl::DType::complex64},
    {at::kComplexDouble, tccl::DType::complex128},
};
static_assert(std::size(kDTypes) == tccl::kDTypeCount);

inline std::optional<tccl::DType> dtype_of(at::ScalarType type) {
  for (const DTypeRow& row : kDTypes) {
    if (row.torch == type) return row.tccl;
  }
  return std::nullopt;
}

struct ReduceOpRow {
  c10d::ReduceOp::RedOpType torch;
  tccl::ReduceOp tccl;
};

inline constexpr ReduceOpRow kReduceOps[] = {
    {c10d::ReduceOp::SUM, tccl::ReduceOp::sum},
    {c10d::ReduceOp::AVG, tccl::ReduceOp::avg},
    {c10d::ReduceOp::PRODUCT, tccl::ReduceOp::product},
    {c10d::ReduceOp::MIN, tccl::ReduceOp::min},
    {c10d::ReduceOp::MAX, tccl::ReduceOp::max},
    {c10d::ReduceOp::BAND, tccl::ReduceOp::band},
    {c10d::ReduceOp::BOR, tccl::ReduceOp::bor},
    {c10d::ReduceOp::BXOR, tccl::ReduceOp::bxor},
    {c10d::ReduceOp::PREMUL_SUM, tccl::ReduceOp::premul_sum},
};
static_assert(std::size(kReduceOps) == tccl::kReduceOpCount);

inline std::optional<tccl::ReduceOp> reduce_op_of(c10d::ReduceOp::RedOpType type) {
  for (const ReduceOpRow& row : kReduceOps) {
    if (row.torch == type) return row.tccl;
  }
  return std::nullopt;
}

}  // namespace torch_ccl
