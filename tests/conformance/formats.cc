#include "formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace conformance {

using tccl::DType;

namespace {

constexpr FloatFormat kFloat64{64, 52, 1023, Specials::ieee};
constexpr FloatFormat kFloat32{32, 23, 127, Specials::ieee};
constexpr FloatFormat kFloat16{16, 10, 15, Specials::ieee};
constexpr FloatFormat kBfloat16{16, 7, 127, Specials::ieee};
constexpr FloatFormat kFloat8E4m3fn{8, 3, 7, Specials::top_code};
constexpr FloatFormat kFloat8E5m2{8, 2, 15, Specials::ieee};
constexpr FloatFormat kFloat8E4m3fnuz{8, 3, 8, Specials::fnuz};
constexpr FloatFormat kFloat8E5m2fnuz{8, 2, 16, Specials::fnuz};

static_assert(kFloat8E4m3fn.largest_finite() == 0x7E && kFloat8E5m2.largest_finite() == 0x7B);
static_assert(kFloat16.overflow_code() == 0x7C00 && kFloat8E4m3fnuz.overflow_code() == 0x80);

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double finite_magnitude(const FloatFormat& format, std::uint64_t magnitude) {
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const std::uint64_t fraction = magnitude & (format.one_mantissa() - 1);
  if (exponent == 0) {
    return std::ldexp(static_cast<double>(fraction), 1 - format.bias - format.mantissa_bits);
  }
  return std::ldexp(static_cast<double>(format.one_mantissa() + fraction),
                    exponent - format.bias - format.mantissa_bits);
}

/// Rounds to a multiple of the spacing of codes around `magnitude`. Where that carries into the
/// next power of two, the sum of the fields carries too.
std::uint64_t rounded_magnitude(const FloatFormat& format, double magnitude) {
  const int smallest_exponent = 1 - format.bias;
  const int exponent = std::max(std::ilogb(magnitude), smallest_exponent);
  const double steps = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const std::int64_t below = static_cast<std::int64_t>(exponent - smallest_exponent)
                             << format.mantissa_bits;
  return static_cast<std::uint64_t>(below + static_cast<std::int64_t>(steps));
}

}  // namespace

const FloatFormat* float_format(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::complex128:
      return &kFloat64;
    case DType::float32:
    case DType::complex64:
      return &kFloat32;
    case DType::float16:
      return &kFloat16;
    case DType::bfloat16:
      return &kBfloat16;
    case DType::float8_e4m3fn:
      return &kFloat8E4m3fn;
    case DType::float8_e5m2:
      return &kFloat8E5m2;
    case DType::float8_e4m3fnuz:
      return &kFloat8E4m3fnuz;
    case DType::float8_e5m2fnuz:
      return &kFloat8E5m2fnuz;
    default:
      return nullptr;
  }
}

bool is_nan(const FloatFormat& format, std::uint64_t code) {
  if (format.specials == Specials::fnuz) return code == format.sign_bit();
  const std::uint64_t magnitude = code & format.magnitude_mask();
  const std::uint64_t last_number = format.specials == Specials::ieee
                                        ? format.largest_finite() + 1  // infinity
                                        : format.largest_finite();
  return magnitude > last_number;
}

double decode(const FloatFormat& format, std::uint64_t code) {
  if (is_nan(format, code)) return kNan;
  const std::uint64_t magnitude = code & format.magnitude_mask();
  const double value =
      magnitude > format.largest_finite() ? kInfinity : finite_magnitude(format, magnitude);
  return (code & format.sign_bit()) != 0 ? -value : value;
}

std::uint64_t encode(const FloatFormat& format, double value) {
  if (std::isnan(value)) return format.nan_code();
  const double magnitude = std::fabs(value);
  std::uint64_t code = 0;
  if (std::isinf(magnitude)) {
    code = format.overflow_code();
  } else if (magnitude > 0) {
    code = rounded_magnitude(format, magnitude);
    if (code > format.largest_finite()) code = format.overflow_code();
  }
  const bool has_sign = format.specials != Specials::fnuz || (code != 0 && !is_nan(format, code));
  return std::signbit(value) && has_sign ? code | format.sign_bit() : code;
}

std::size_t element_bytes(DType dtype) {
  if (const FloatFormat* format = float_format(dtype)) {
    return static_cast<std::size_t>(format->bits) / 8 * (is_complex(dtype) ? 2 : 1);
  }
  switch (dtype) {
    case DType::int16:
    case DType::uint16:
      return 2;
    case DType::int32:
    case DType::uint32:
      return 4;
    case DType::int64:
    case DType::uint64:
      return 8;
    default:
      return 1;
  }
}

bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

bool is_signed_integer(DType dtype) {
  return dtype == DType::int8 || dtype == DType::int16 || dtype == DType::int32 ||
         dtype == DType::int64;
}

bool is_integer(DType dtype) { return float_format(dtype) == nullptr && dtype != DType::boolean; }

std::uint64_t load_code(const void* from, std::size_t bytes) {
  std::uint64_t code = 0;  // little-endian, as the machines the library runs on
  std::memcpy(&code, from, bytes);
  return code;
}

void store_code(void* to, std::uint64_t code, std::size_t bytes) { std::memcpy(to, &code, bytes); }

}  // namespace conformance
