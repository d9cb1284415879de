// Conversions between float32 and the narrower floating-point formats, to nearest even, with the
// values of torch's `.to(dtype)`:
//
//   const std::uint16_t code = Float16::encode(1.5f);   // 0x3e00
//   const float value = Float8E5m2::decode(0x3e);       // 1.5f
//
// Each formula is written once, on bits, and works on one number or on a vector: selects, no
// branches, no tables. Every NaN becomes the format's canonical quiet NaN without payload and sign,
// because which of two NaNs an addition returns depends on the operand order that the compiler
// chooses. Results do not depend on whether the thread flushes denormals to zero.
//
// Everything is in an unnamed namespace because the kernels are compiled once per instruction set:
// the linker must not replace one file's copy of a function by another file's.
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "kernels/vectors.h"

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

using Ints = Vector<std::int32_t>;
using Unsigneds = Vector<std::uint32_t>;
using Floats = Vector<float>;

inline constexpr std::int32_t kFloat32Infinity = 0x7f800000;
inline constexpr std::int32_t kFloat32Nan = 0x7fc00000;
inline constexpr int kFloat32MantissaBits = 23;
inline constexpr int kFloat32Bias = 127;

constexpr std::int32_t bits_of(float value) { return __builtin_bit_cast(std::int32_t, value); }
constexpr float float_of(std::int32_t bits) { return __builtin_bit_cast(float, bits); }
constexpr std::uint32_t unsigned_of(std::int32_t bits) { return static_cast<std::uint32_t>(bits); }
constexpr std::int32_t signed_of(std::uint32_t bits) { return static_cast<std::int32_t>(bits); }

inline Ints bits_of(Floats values) { return reinterpret_cast<Ints>(values); }
inline Floats float_of(Ints bits) { return reinterpret_cast<Floats>(bits); }
inline Unsigneds unsigned_of(Ints bits) { return reinterpret_cast<Unsigneds>(bits); }
inline Ints signed_of(Unsigneds bits) { return reinterpret_cast<Ints>(bits); }

/// 2^exponent; the result must be a normal number.
constexpr float power_of_two(int exponent) {
  return float_of((exponent + kFloat32Bias) << kFloat32MantissaBits);
}

constexpr std::int32_t select(bool condition, std::int32_t yes, std::int32_t no) {
  return condition ? yes : no;
}
inline Ints select(Ints condition, Ints yes, Ints no) { return condition ? yes : no; }
inline Ints select(Ints condition, std::int32_t yes, Ints no) {
  return condition ? all_lanes(yes) : no;
}
inline Ints select(Ints condition, Ints yes, std::int32_t no) {
  return condition ? yes : all_lanes(no);
}
inline Ints select(Ints condition, std::int32_t yes, std::int32_t no) {
  return condition ? all_lanes(yes) : all_lanes(no);
}

/// Adds the bias with which dropping the low `shift` bits rounds to nearest even.
template <typename Int>
constexpr auto with_rounding_bias(Int bits, int shift) {
  const auto raw = unsigned_of(bits);  // the addition may carry into bit 31
  return raw + ((1u << (shift - 1)) - 1) + ((raw >> shift) & 1u);
}

/// A narrow floating-point format. Codes are without the sign bit; the bits that are neither sign
/// nor mantissa are the exponent.
struct FloatLayout {
  int mantissa_bits;
  int bias;
  int first_special;  ///< smallest code that is infinity or NaN
  int overflow;       ///< code of a number that is too large
  int nan;            ///< the sign bit itself in the "fnuz" formats, which have no negative zero
};

template <typename CodeType, FloatLayout kLayout>
struct NarrowFloat {
  using Code = CodeType;

  static constexpr Code encode(float value) {
    return static_cast<Code>(encode_bits(bits_of(value)));
  }
  static constexpr float decode(Code code) {
    return float_of(decode_bits(static_cast<std::int32_t>(code)));
  }

  /// The codes of the float32 that have these bits.
  template <typename Int>
  static constexpr Int encode_bits(Int bits) {
    const Int magnitude = bits & INT32_MAX;
    const Int cut = signed_of(with_rounding_bias(magnitude, kShift) >> kShift);
    const Int normal = cut - (kRebias << kLayout.mantissa_bits);
    Int code = select(magnitude < kSmallestNormal, round_denormal(magnitude), normal);
    code = select(code > kLayout.overflow, kLayout.overflow, code);
    const Int sign = (bits >> (31 - kSignBit)) & kSign;
    const Int with_sign = code | (kHasNegativeZero ? sign : select(code != 0, sign, 0));
    return select(magnitude > kFloat32Infinity, kLayout.nan, with_sign);
  }

  /// The bits of the float32 that have these codes; the bits above the code do not matter.
  template <typename Int>
  static constexpr Int decode_bits(Int code) {
    constexpr std::int32_t kOne = 1 << kFloat32MantissaBits;
    const Int magnitude = code & (kSign - 1);
    const Int normal = (magnitude << kShift) + (kRebias << kFloat32MantissaBits);
    // A denormal has no implicit leading one: add one to the exponent, then subtract that one.
    const Int denormal = bits_of(float_of(normal + kOne) - power_of_two(1 - kLayout.bias));
    const Int finite = select(magnitude < kSmallestNormalCode, denormal, normal);
    const Int sign = (code & kSign) << (31 - kSignBit);
    if constexpr (!kHasNegativeZero) {
      return select((code & (2 * kSign - 1)) == kLayout.nan, kFloat32Nan, finite | sign);
    }
    return finite | select(magnitude >= kLayout.first_special, kFloat32Infinity, 0) | sign;
  }

 private:
  static constexpr int kSignBit = 8 * sizeof(Code) - 1;
  static constexpr std::int32_t kSign = 1 << kSignBit;
  static constexpr bool kHasNegativeZero = kLayout.nan != kSign;
  static constexpr int kShift = kFloat32MantissaBits - kLayout.mantissa_bits;
  static constexpr std::int32_t kRebias = kFloat32Bias - kLayout.bias;
  static constexpr std::int32_t kSmallestNormal = (kRebias + 1) << kFloat32MantissaBits;
  static constexpr std::int32_t kSmallestNormalCode = 1 << kLayout.mantissa_bits;

  // Adding a number whose last mantissa bit equals the format's smallest denormal makes the FPU
  // round to multiples of that denormal.
  template <typename Int>
  static constexpr Int round_denormal(Int magnitude) {
    constexpr int kUnitExponent = 1 - kLayout.bias - kLayout.mantissa_bits;
    constexpr float kRounder = power_of_two(kUnitExponent + kFloat32MantissaBits);
    return bits_of(float_of(magnitude) + kRounder) - bits_of(kRounder);
  }
};

using Float16 = NarrowFloat<std::uint16_t, FloatLayout{10, 15, 0x7c00, 0x7c00, 0x7e00}>;
// e4m3fn has no infinity and saturates, as in torch 2.13; the fnuz formats overflow to NaN.
using Float8E4m3fn = NarrowFloat<std::uint8_t, FloatLayout{3, 7, 0x7f, 0x7e, 0x7f}>;
using Float8E5m2 = NarrowFloat<std::uint8_t, FloatLayout{2, 15, 0x7c, 0x7c, 0x7f}>;
using Float8E4m3fnuz = NarrowFloat<std::uint8_t, FloatLayout{3, 8, 0x80, 0x80, 0x80}>;
using Float8E5m2fnuz = NarrowFloat<std::uint8_t, FloatLayout{2, 16, 0x80, 0x80, 0x80}>;

/// The upper half of a float32. The exponent range is the same, so denormals and overflow need no
/// special case.
struct BFloat16 {
  using Code = std::uint16_t;

  static constexpr Code encode(float value) {
    return static_cast<Code>(encode_bits(bits_of(value)));
  }
  static constexpr float decode(Code code) {
    return float_of(decode_bits(static_cast<std::int32_t>(code)));
  }

  template <typename Int>
  static constexpr Int encode_bits(Int bits) {
    return signed_of(unsigned_of(encode_in_place(bits)) >> 16);
  }

  /// The code in the upper 16 bits; the lower 16 bits are unspecified.
  template <typename Int>
  static constexpr Int encode_in_place(Int bits) {
    const auto is_nan =
        float_of(bits) != float_of(bits);  // NOLINT: NaN is what differs from itself
    return select(is_nan, kFloat32Nan, signed_of(with_rounding_bias(bits, 16)));
  }

  template <typename Int>
  static constexpr Int decode_bits(Int code) {
    return signed_of(unsigned_of(code) << 16);
  }
};

}  // namespace
}  // namespace tccl::kernels
