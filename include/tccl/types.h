// Element types and reductions. Implemented by src/operation/types.cc.
// Thread safety: all functions are pure and safe from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tccl/export.h"

namespace tccl {

enum class DType : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
  complex64,
  complex128,
};
inline constexpr int kDTypeCount = 19;

enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum };
inline constexpr int kReduceOpCount = 9;

/// A reduction and, for premul_sum, the factor that this rank's input is multiplied by first.
/// The factor may differ from rank to rank.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1.0;

  Reduction() = default;
  Reduction(ReduceOp o, double f = 1.0) : op(o), factor(f) {}  // NOLINT: converts on purpose
};

/// The format in which float32 sums are sent between hosts: bfloat16 and int8 have fewer bytes and
/// less precision.
enum class WireFormat : std::uint8_t { by_setting, uncompressed, bfloat16, int8 };

inline constexpr std::size_t kMaxElementBytes = 16;

TCCL_API std::size_t size_of(DType dtype);
TCCL_API std::string_view name_of(DType dtype);
TCCL_API std::string_view name_of(ReduceOp op);
/// The spelling of CCL_WIRE_DTYPE.
TCCL_API std::string_view name_of(WireFormat format);
/// The inverse of name_of(); none if the name is unknown.
TCCL_API std::optional<WireFormat> wire_format_named(std::string_view name);

/// Whether `op` is defined for `dtype`: no average of integers, no min or max of complex numbers,
/// no bitwise operations on floating point.
TCCL_API bool supports(DType dtype, ReduceOp op);

}  // namespace tccl
