// The floating-point formats of the library's element types, written from their definitions: a code
// is sign, exponent, mantissa; its value is a sum of powers of two. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tccl/types.h"

namespace conformance {

/// Which codes are not numbers.
enum class Specials {
  ieee,      // exponent all ones: infinity if the mantissa is zero, else NaN
  top_code,  // no infinity; only all ones is NaN; overflow saturates (float8_e4m3fn)
  fnuz,      // no infinity, no negative zero: its code is the one NaN, also for overflow
};

struct FloatFormat {
  int bits;
  int mantissa_bits;
  int bias;
  Specials specials;

  [[nodiscard]] constexpr std::uint64_t sign_bit() const { return std::uint64_t{1} << (bits - 1); }
  [[nodiscard]] constexpr std::uint64_t magnitude_mask() const { return sign_bit() - 1; }
  [[nodiscard]] constexpr std::uint64_t one_mantissa() const {
    return std::uint64_t{1} << mantissa_bits;
  }
  /// Codes compare as their magnitudes do: this is the largest code of a finite number.
  [[nodiscard]] constexpr std::uint64_t largest_finite() const {
    switch (specials) {
      case Specials::ieee:
        return magnitude_mask() - one_mantissa();
      case Specials::top_code:
        return magnitude_mask() - 1;
      case Specials::fnuz:
        return magnitude_mask();
    }
    return 0;
  }
  [[nodiscard]] constexpr std::uint64_t nan_code() const {
    return specials == Specials::fnuz ? sign_bit() : magnitude_mask();
  }
  /// Code of infinity and of numbers that are too large, as in torch's conversions.
  [[nodiscard]] constexpr std::uint64_t overflow_code() const {
    switch (specials) {
      case Specials::ieee:
        return largest_finite() + 1;
      case Specials::top_code:
        return largest_finite();
      case Specials::fnuz:
        return nan_code();
    }
    return 0;
  }
};

/// The format of `dtype`, or of a complex type's components; null for integers and bool.
const FloatFormat* float_format(tccl::DType dtype);

bool is_nan(const FloatFormat& format, std::uint64_t code);
double decode(const FloatFormat& format, std::uint64_t code);
/// The nearest code, ties to even.
std::uint64_t encode(const FloatFormat& format, double value);

std::size_t element_bytes(tccl::DType dtype);
bool is_complex(tccl::DType dtype);
bool is_signed_integer(tccl::DType dtype);
bool is_integer(tccl::DType dtype);

/// An unsigned number of 1, 2, 4 or 8 bytes in memory order.
std::uint64_t load_code(const void* from, std::size_t bytes);
void store_code(void* to, std::uint64_t code, std::size_t bytes);

}  // namespace conformance
