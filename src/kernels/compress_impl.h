// The kernels behind compress.h, which describes the formats. Compiled once per instruction set;
// the rules of reduce_impl.h apply.
// Thread safety: functions without shared state.
#pragma once

#include "kernels/compress_kernels.h"
#include "kernels/float_formats.h"
#include "kernels/vectors.h"

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see float_formats.h

template <typename T>
struct CodesOf {
  using Type [[gnu::vector_size(kLanes<float> * sizeof(T))]] = T;
};

/// One code per float lane of a vector.
template <typename T>
using Codes = typename CodesOf<T>::Type;

// ---- bfloat16 ----

[[gnu::always_inline]] inline Codes<std::uint16_t> to_bfloat16(Floats values) {
  const Ints codes = BFloat16::encode_bits(bits_of(values));
  return __builtin_convertvector(unsigned_of(codes), Codes<std::uint16_t>);
}

[[gnu::always_inline]] inline Floats from_bfloat16(Codes<std::uint16_t> codes) {
  return float_of(BFloat16::decode_bits(signed_of(__builtin_convertvector(codes, Unsigneds))));
}

inline void compress_bfloat16(unsigned char* to, const unsigned char* from, std::size_t count) {
  constexpr std::size_t kStep = kLanes<float>;
  for (; count >= kStep; to += 2 * kStep, from += 4 * kStep, count -= kStep)
    store_vector(to, to_bfloat16(load_vector<float>(from)));
  const auto rest = to_bfloat16(reinterpret_cast<Floats>(load_partial(from, 4 * count)));
  copy_small(to, reinterpret_cast<const unsigned char*>(&rest), 2 * count);
}

inline void decompress_bfloat16(unsigned char* to, const unsigned char* from, std::size_t count) {
  constexpr std::size_t kStep = kLanes<float>;
  Codes<std::uint16_t> codes;
  for (; count >= kStep; to += 4 * kStep, from += 2 * kStep, count -= kStep) {
    std::memcpy(&codes, from, sizeof(codes));
    store_vector(to, from_bfloat16(codes));
  }
  codes = Codes<std::uint16_t>{};
  copy_small(reinterpret_cast<unsigned char*>(&codes), from, 2 * count);
  const Floats rest = from_bfloat16(codes);
  copy_small(to, reinterpret_cast<const unsigned char*>(&rest), 4 * count);
}

// ---- int8 ----

inline constexpr float kLargestCode = 127;
inline constexpr float kSmallestScale = power_of_two(-126);
inline constexpr std::size_t kScaleBytes = sizeof(float);

/// The bits of the largest magnitude in a block. Magnitudes compare as their bits do; NaN is above
/// infinity.
[[gnu::always_inline]] inline std::int32_t largest_magnitude(const unsigned char* block) {
  Ints lanes{};
  for (std::size_t i = 0; i < kCompressionBlock; i += kLanes<float>) {
    const Ints magnitudes = load_vector<std::int32_t>(block + 4 * i) & INT32_MAX;
    lanes = select(magnitudes > lanes, magnitudes, lanes);
  }
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < kLanes<float>; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

inline float scale_for(std::int32_t largest) {
  if (largest >= kFloat32Infinity) return float_of(kFloat32Nan);
  if (largest <= bits_of(kSmallestScale / 2)) return 0;  // all elements round to zero
  // A code has 7 bits: with the scale's 7 lowest bits zero, code * scale is exact.
  constexpr std::int32_t kLowBits = (1 << 7) - 1;
  const float scale = float_of(bits_of(float_of(largest) / kLargestCode) & ~kLowBits);
  return scale < kSmallestScale ? kSmallestScale : scale;
}

// Convert widths by a factor of two at a time: for a factor of four GCC 12 emits scalar code.

/// Rounds to nearest even. Adding 1.5 * 2^23, whose last mantissa bit is worth one, makes the FPU
/// round to integers; the low bits of the sum are then the integer in two's complement.
[[gnu::always_inline]] inline Codes<std::int8_t> to_int8(Floats values) {
  constexpr float kRounder = 1.5f * power_of_two(kFloat32MantissaBits);
  const auto halves = __builtin_convertvector(bits_of(values + kRounder), Codes<std::int16_t>);
  return __builtin_convertvector(halves, Codes<std::int8_t>);
}

[[gnu::always_inline]] inline Floats from_int8(Codes<std::int8_t> codes) {
  const auto halves = __builtin_convertvector(codes, Codes<std::int16_t>);
  return __builtin_convertvector(__builtin_convertvector(halves, Ints), Floats);
}

inline void compress_block(unsigned char* to, const unsigned char* from) {
  const float scale = scale_for(largest_magnitude(from));
  std::memcpy(to, &scale, kScaleBytes);
  to += kScaleBytes;
  if (!(scale > 0)) {  // zero or NaN: no division
    std::memset(to, 0, kCompressionBlock);
    return;
  }
  for (std::size_t i = 0; i < kCompressionBlock; i += kLanes<float>)
    store_vector(to + i, to_int8(load_vector<float>(from + 4 * i) / scale));
}

inline void decompress_block(unsigned char* to, const unsigned char* from) {
  float scale;
  std::memcpy(&scale, from, kScaleBytes);
  from += kScaleBytes;
  for (std::size_t i = 0; i < kCompressionBlock; i += kLanes<float>) {
    Codes<std::int8_t> codes;
    std::memcpy(&codes, from + i, sizeof(codes));
    store_vector(to + 4 * i, from_int8(codes) * scale);
  }
}

// A short last block is padded with zeros; only its own elements are written.

inline void compress_int8(unsigned char* to, const unsigned char* from, std::size_t count) {
  for (; count >= kCompressionBlock; count -= kCompressionBlock) {
    compress_block(to, from);
    to += kScaleBytes + kCompressionBlock, from += 4 * kCompressionBlock;
  }
  if (count == 0) return;
  unsigned char values[4 * kCompressionBlock] = {}, compressed[kScaleBytes + kCompressionBlock];
  std::memcpy(values, from, 4 * count);
  compress_block(compressed, values);
  std::memcpy(to, compressed, kScaleBytes + count);
}

inline void decompress_int8(unsigned char* to, const unsigned char* from, std::size_t count) {
  for (; count >= kCompressionBlock; count -= kCompressionBlock) {
    decompress_block(to, from);
    to += 4 * kCompressionBlock, from += kScaleBytes + kCompressionBlock;
  }
  if (count == 0) return;
  unsigned char compressed[kScaleBytes + kCompressionBlock] = {}, values[4 * kCompressionBlock];
  std::memcpy(compressed, from, kScaleBytes + count);
  decompress_block(values, compressed);
  std::memcpy(to, values, 4 * count);
}

inline constexpr CompressionKernels kCompressionKernels = {
    .bfloat16 = {compress_bfloat16, decompress_bfloat16},
    .int8 = {compress_int8, decompress_int8},
};

}  // namespace
}  // namespace tccl::kernels
