// The narrow floating-point formats by definition: values of codes and nearest codes of values, in
// double arithmetic. Shares no code with the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tccl/types.h"

namespace tccl {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

enum class Specials {
  ieee,  // the last exponent holds infinity and NaN
  fn,    // only the code of all ones is NaN; no infinity, saturates
  fnuz,  // only the code of negative zero is NaN; no infinity, no negative zero
};

struct Format {
  DType dtype;
  int exponent_bits, mantissa_bits, bias;
  Specials specials;

  int sign_bit() const { return exponent_bits + mantissa_bits; }
  unsigned code_count() const { return 2u << sign_bit(); }
  unsigned sign_code() const { return 1u << sign_bit(); }
};

inline constexpr Format kFormats[] = {
    {DType::float16, 5, 10, 15, Specials::ieee},
    {DType::bfloat16, 8, 7, 127, Specials::ieee},
    {DType::float8_e4m3fn, 4, 3, 7, Specials::fn},
    {DType::float8_e5m2, 5, 2, 15, Specials::ieee},
    {DType::float8_e4m3fnuz, 4, 3, 8, Specials::fnuz},
    {DType::float8_e5m2fnuz, 5, 2, 16, Specials::fnuz},
};

inline const Format* format_of(DType dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

inline double value_by_definition(const Format& f, unsigned code) {
  const unsigned magnitude = code % f.sign_code();
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const unsigned mantissa = magnitude % (1u << f.mantissa_bits);
  const double sign = code >= f.sign_code() ? -1.0 : 1.0;
  if (f.specials == Specials::fnuz && code == f.sign_code()) return kNan;
  if (f.specials == Specials::fn && magnitude == f.sign_code() - 1) return kNan;
  if (f.specials == Specials::ieee && exponent == (1 << f.exponent_bits) - 1) {
    return mantissa == 0 ? sign * kInfinity : kNan;
  }
  const double fraction = std::ldexp(mantissa, -f.mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - f.bias)
                       : sign * std::ldexp(1.0 + fraction, exponent - f.bias);
}

/// The values of all codes, computed once.
inline const std::vector<double>& values_of(const Format& f) {
  static const auto tables = [] {
    std::vector<std::vector<double>> result;
    for (const Format& format : kFormats) {
      result.emplace_back();
      for (unsigned code = 0; code < format.code_count(); ++code) {
        result.back().push_back(value_by_definition(format, code));
      }
    }
    return result;
  }();
  return tables[static_cast<std::size_t>(&f - kFormats)];
}

inline double decode(const Format& f, unsigned code) { return values_of(f)[code]; }

/// Codes of the largest finite number and of a NaN; what a number too large becomes.
inline unsigned largest_finite(const Format& f) {
  if (f.specials == Specials::ieee) return f.sign_code() - (1u << f.mantissa_bits) - 1;
  return f.sign_code() - (f.specials == Specials::fn ? 2 : 1);
}

inline unsigned some_nan(const Format& f) {
  return f.specials == Specials::fnuz ? f.sign_code() : f.sign_code() - 1;
}

inline unsigned overflowed(const Format& f) {
  if (f.specials == Specials::ieee) return largest_finite(f) + 1;
  return f.specials == Specials::fn ? largest_finite(f) : some_nan(f);
}

/// Nearest code of a magnitude by trying all, ties to the even one. The scale goes on one step
/// beyond the largest number: what is nearest to that step has overflowed.
inline unsigned nearest_by_search(const Format& f, double magnitude) {
  const std::vector<double>& values = values_of(f);
  const unsigned last = largest_finite(f);
  const double beyond = 2 * values[last] - values[last - 1];
  magnitude = std::min(magnitude, beyond);  // next to a huge number all distances look alike
  unsigned best = last + 1;
  double best_distance = beyond - magnitude;
  for (unsigned code = 0; code <= last; ++code) {
    const double distance = std::fabs(values[code] - magnitude);
    if (distance > best_distance || (distance == best_distance && code % 2 != 0)) continue;
    best = code;
    best_distance = distance;
  }
  return best > last ? overflowed(f) : best;
}

/// The same by arithmetic: in units of the last place, std::nearbyint rounds to nearest even.
inline unsigned nearest_by_arithmetic(const Format& f, double magnitude) {
  if (std::isinf(magnitude)) return overflowed(f);
  const int exponent = std::max(magnitude == 0 ? 1 - f.bias : std::ilogb(magnitude), 1 - f.bias);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  const int field = exponent + f.bias - 1;  // the leading one of `units` adds the missing 1
  const double code = std::ldexp(field, f.mantissa_bits) + units;
  return code > largest_finite(f) ? overflowed(f) : static_cast<unsigned>(code);
}

inline unsigned encode(const Format& f, double value) {
  if (std::isnan(value)) return some_nan(f);
  const double magnitude = std::fabs(value);
  const unsigned code =
      f.mantissa_bits > 3 ? nearest_by_arithmetic(f, magnitude) : nearest_by_search(f, magnitude);
  if (f.specials == Specials::fnuz && code == 0) return 0;
  return code | (std::signbit(value) ? f.sign_code() : 0);
}

}  // namespace tccl
