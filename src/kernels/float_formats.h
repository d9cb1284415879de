// Conversions between float32 and the narrower floating-point formats, to nearest even, with the
// values of torch's `.to(dtype)`:
//
//   const std::uint16_t code = Float16::encode(1.5f);   // 0x3e00
//   const float value = Float8E5m2::decode(0x3e);       // 1.5f
//
// Straight-line code (selects, no branches, no tables), so that loops over it vectorise. A NaN
// becomes the format's one quiet NaN: payloads would differ between instruction sets. Results do
// not depend on whether the thread flushes denormals to zero. Pure, safe from any thread.
//
// Everything is in an unnamed namespace because the kernels are compiled once per instruction set:
// the linker must never merge one file's copy of a function into another file.
#pragma once

#include <cstdint>

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

inline constexpr std::int32_t kFloat32Infinity = 0x7f800000;
inline constexpr std::int32_t kFloat32Nan = 0x7fc00000;
inline constexpr int kFloat32MantissaBits = 23;
inline constexpr int kFloat32Bias = 127;

constexpr std::int32_t bits_of(float value) { return __builtin_bit_cast(std::int32_t, value); }
constexpr float float_of(std::int32_t bits) { return __builtin_bit_cast(float, bits); }

/// 2 to the power of `exponent`, for exponents of normal numbers.
constexpr float power_of_two(int exponent) {
  return float_of((exponent + kFloat32Bias) << kFloat32MantissaBits);
}

/// `condition ? yes : no` by masks: given a branch, compilers move floating-point work into it, and
/// then cannot vectorise the loop.
constexpr std::int32_t select(bool condition, std::int32_t yes, std::int32_t no) {
  const std::int32_t mask = -static_cast<std::int32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// Drops the low `shift` bits of a magnitude, to nearest even.
constexpr std::int32_t round_off(std::int32_t magnitude, int shift) {
  const auto bits = static_cast<std::uint32_t>(magnitude);  // may carry beyond 31 bits
  const std::uint32_t below_half = (1u << (shift - 1)) - 1;
  return static_cast<std::int32_t>((bits + below_half + ((bits >> shift) & 1)) >> shift);
}

/// A format by its codes without sign. The rest of the bits are the exponent.
struct Layout {
  int mantissa_bits;
  int bias;
  int first_special;  ///< smallest code that is infinity or NaN
  int overflow;       ///< what a number too large becomes
  int nan;            ///< the sign bit itself in the formats "fnuz", which have no negative zero
};

template <typename CodeType, Layout kLayout>
struct NarrowFloat {
  using Code = CodeType;

  static constexpr Code encode(float value) {
    const std::int32_t magnitude = bits_of(value) & ~kFloat32Sign;
    const std::int32_t normal = round_off(magnitude, kShift) - (kRebias << kLayout.mantissa_bits);
    const std::int32_t denormal = round_denormal(magnitude);
    std::int32_t code = select(magnitude < kSmallestNormal, denormal, normal);
    code = select(code > kLayout.overflow, kLayout.overflow, code);
    code = select(magnitude > kFloat32Infinity, kLayout.nan, code);
    return static_cast<Code>(code | sign_for(code, value));
  }

  static constexpr float decode(Code code) {
    const std::int32_t magnitude = code & (kSign - 1);
    const std::int32_t normal = (magnitude << kShift) + (kRebias << kFloat32MantissaBits);
    // Through an integer: a denormal float32 as input would be flushed to zero in some threads.
    const std::int32_t denormal = bits_of(static_cast<float>(magnitude) * kUnit);
    const std::int32_t finite = select(magnitude < kSmallestNormalCode, denormal, normal);
    const std::int32_t sign = (code & kSign) << (31 - kSignBit);
    return float_of(with_special(code, finite) | sign);
  }

 private:
  static constexpr std::int32_t kFloat32Sign = INT32_MIN;
  static constexpr int kSignBit = 8 * sizeof(Code) - 1;
  static constexpr std::int32_t kSign = 1 << kSignBit;
  static constexpr bool kHasNegativeZero = kLayout.nan != kSign;
  static constexpr int kShift = kFloat32MantissaBits - kLayout.mantissa_bits;
  static constexpr std::int32_t kRebias = kFloat32Bias - kLayout.bias;
  static constexpr std::int32_t kSmallestNormal = (kRebias + 1) << kFloat32MantissaBits;
  static constexpr std::int32_t kSmallestNormalCode = 1 << kLayout.mantissa_bits;
  static constexpr int kUnitExponent = 1 - kLayout.bias - kLayout.mantissa_bits;
  static constexpr float kUnit = power_of_two(kUnitExponent);  // the smallest denormal

  // Next to a number whose last mantissa bit is worth kUnit, the adder rounds to multiples of it.
  static constexpr std::int32_t round_denormal(std::int32_t magnitude) {
    constexpr float kRounder = power_of_two(kUnitExponent + kFloat32MantissaBits);
    return bits_of(float_of(magnitude) + kRounder) - bits_of(kRounder);
  }

  static constexpr std::int32_t sign_for(std::int32_t code, float value) {
    const std::int32_t sign = (bits_of(value) >> (31 - kSignBit)) & kSign;
    return select(kHasNegativeZero || code != 0, sign, 0);
  }

  static constexpr std::int32_t with_special(Code code, std::int32_t finite) {
    if constexpr (!kHasNegativeZero) return select(code == kLayout.nan, kFloat32Nan, finite);
    const bool is_special = (code & (kSign - 1)) >= kLayout.first_special;
    return finite | select(is_special, kFloat32Infinity, 0);
  }
};

using Float16 = NarrowFloat<std::uint16_t, Layout{10, 15, 0x7c00, 0x7c00, 0x7e00}>;
// e4m3fn has no infinity; like torch 2.13 it saturates, while fnuz overflows to NaN.
using Float8E4m3fn = NarrowFloat<std::uint8_t, Layout{3, 7, 0x7f, 0x7e, 0x7f}>;
using Float8E5m2 = NarrowFloat<std::uint8_t, Layout{2, 15, 0x7c, 0x7c, 0x7f}>;
using Float8E4m3fnuz = NarrowFloat<std::uint8_t, Layout{3, 8, 0x80, 0x80, 0x80}>;
using Float8E5m2fnuz = NarrowFloat<std::uint8_t, Layout{2, 16, 0x80, 0x80, 0x80}>;

/// The upper half of a float32: same exponents, so denormals and overflow need no care.
struct BFloat16 {
  using Code = std::uint16_t;

  static constexpr Code encode(float value) {
    const std::int32_t bits = bits_of(value);
    const bool is_nan = (bits & INT32_MAX) > kFloat32Infinity;
    return static_cast<Code>(select(is_nan, kFloat32Nan >> 16, round_off(bits, 16)));
  }

  static constexpr float decode(Code code) {
    return float_of(static_cast<std::int32_t>(std::uint32_t{code} << 16));
  }
};

}  // namespace
}  // namespace tccl::kernels
