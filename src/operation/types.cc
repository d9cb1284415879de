#include "tccl/types.h"

namespace tccl {
namespace {

// A kind is one bit, so that an operation can name the set of kinds it is defined for.
using Kinds = unsigned;
constexpr Kinds kFloating = 1, kComplex = 2, kInteger = 4, kBoolean = 8;
constexpr Kinds kAll = kFloating | kComplex | kInteger | kBoolean;

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
  Kinds kind;
};

constexpr std::array<DTypeRow, kDTypeCount> kDTypes{{
    {DType::float64, "float64", 8, kFloating},
    {DType::float32, "float32", 4, kFloating},
    {DType::float16, "float16", 2, kFloating},
    {DType::bfloat16, "bfloat16", 2, kFloating},
    {DType::float8_e4m3fn, "float8_e4m3fn", 1, kFloating},
    {DType::float8_e5m2, "float8_e5m2", 1, kFloating},
    {DType::float8_e4m3fnuz, "float8_e4m3fnuz", 1, kFloating},
    {DType::float8_e5m2fnuz, "float8_e5m2fnuz", 1, kFloating},
    {DType::int8, "int8", 1, kInteger},
    {DType::int16, "int16", 2, kInteger},
    {DType::int32, "int32", 4, kInteger},
    {DType::int64, "int64", 8, kInteger},
    {DType::uint8, "uint8", 1, kInteger},
    {DType::uint16, "uint16", 2, kInteger},
    {DType::uint32, "uint32", 4, kInteger},
    {DType::uint64, "uint64", 8, kInteger},
    {DType::boolean, "bool", 1, kBoolean},
    {DType::complex64, "complex64", 8, kComplex},
    {DType::complex128, "complex128", 16, kComplex},
}};

struct OpRow {
  ReduceOp op;
  std::string_view name;
  Kinds kinds;
};

constexpr std::array<OpRow, kReduceOpCount> kReduceOps{{
    {ReduceOp::sum, "sum", kAll},
    {ReduceOp::avg, "avg", kFloating | kComplex},
    {ReduceOp::product, "product", kAll},
    {ReduceOp::min, "min", kAll & ~kComplex},
    {ReduceOp::max, "max", kAll & ~kComplex},
    {ReduceOp::band, "band", kInteger | kBoolean},
    {ReduceOp::bor, "bor", kInteger | kBoolean},
    {ReduceOp::bxor, "bxor", kInteger | kBoolean},
    {ReduceOp::premul_sum, "premul_sum", kAll & ~kBoolean},
}};

// The tables are indexed by the enumerators, so a row out of place must not compile.
constexpr bool rows_match_enumerators() {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].dtype != static_cast<DType>(i)) return false;
    if (kDTypes[i].bytes > kMaxElementBytes) return false;
  }
  for (std::size_t i = 0; i < kReduceOps.size(); ++i) {
    if (kReduceOps[i].op != static_cast<ReduceOp>(i)) return false;
  }
  return true;
}
static_assert(rows_match_enumerators());

const DTypeRow& row_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }
const OpRow& row_of(ReduceOp op) { return kReduceOps[static_cast<std::size_t>(op)]; }

}  // namespace

std::size_t size_of(DType dtype) { return row_of(dtype).bytes; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

std::string_view name_of(ReduceOp op) { return row_of(op).name; }

std::string_view name_of(WireFormat format) {
  switch (format) {
    case WireFormat::bfloat16:
      return "bf16";
    case WireFormat::int8:
      return "int8";
    default:
      return "same";
  }
}

std::optional<WireFormat> wire_format_named(std::string_view name) {
  for (const WireFormat format : {WireFormat::uncompressed, WireFormat::bfloat16, WireFormat::int8})
    if (name == name_of(format)) return format;
  return std::nullopt;
}

bool supports(DType dtype, ReduceOp op) { return (row_of(op).kinds & row_of(dtype).kind) != 0; }

}  // namespace tccl
