// Element types of the reduction kernels: how elements are stored in memory and which type they are
// accumulated in. Elements are loaded and stored a group at a time:
//
//   typename Type::Group group = Type::load(from);   // Type::kGroupBytes of elements
//   Type::store(to, group);                          // rounds
//
// A group is one vector of accumulators or several. For types narrower than their accumulator, the
// order of elements within the group is the one that is cheapest to load; load() and store() agree
// on it.
//
// The namespace is unnamed for the reason given in float_formats.h.
// Thread safety: pure functions.
#pragma once

#if defined(__F16C__)  // also defined for every AVX-512 target
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/float_formats.h"
#include "kernels/vectors.h"

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

/// `kParts` vectors of accumulators for `kGroupBytes` of elements in memory.
template <typename Stored, typename AccumulatorType, std::size_t kPartCount>
struct ElementType {
  using Accumulator = AccumulatorType;
  static constexpr std::size_t kElementBytes = sizeof(Stored);
  static constexpr std::size_t kParts = kPartCount;
  static constexpr std::size_t kGroupBytes = kParts * kLanes<Accumulator> * kElementBytes;

  struct Group {
    Vector<Accumulator> part[kParts];
  };
};

template <typename T>
struct Native : ElementType<T, T, 1> {
  using typename Native::ElementType::Group;

  [[gnu::always_inline]] static Group load(const unsigned char* from) {
    return {{load_vector<T>(from)}};
  }
  [[gnu::always_inline]] static void store(unsigned char* to, const Group& group) {
    store_vector(to, group.part[0]);
  }
};

struct Boolean : Native<std::uint8_t> {
  [[gnu::always_inline]] static Group load(const unsigned char* from) {
    const auto stored = load_vector<std::uint8_t>(from);
    return {{reinterpret_cast<Vector<std::uint8_t>>(stored != 0) & std::uint8_t{1}}};
  }
};

/// A 16- or 8-bit float. Codes are packed in 32-bit words; part k holds the k-th code of each word,
/// so no code changes its lane.
template <typename Format>
struct Narrow : ElementType<typename Format::Code, float, 4 / sizeof(typename Format::Code)> {
  using typename Narrow::ElementType::Group;

  [[gnu::always_inline]] static Group load(const unsigned char* from) {
    const Ints words = load_vector<std::int32_t>(from);
    Group group;
    for (int k = 0; k < kCodes; ++k) {
      group.part[k] = float_of(Format::decode_bits(words >> (k * kCodeBits)));
    }
    return group;
  }

  [[gnu::always_inline]] static void store(unsigned char* to, const Group& group) {
    Ints words{};
    for (int k = 0; k < kCodes; ++k) {
      words |= Format::encode_bits(bits_of(group.part[k])) << (k * kCodeBits);
    }
    store_vector(to, words);
  }

 private:
  static constexpr int kCodes = Narrow::kParts;
  static constexpr int kCodeBits = 32 / kCodes;
};

template <>
struct Narrow<BFloat16> : ElementType<std::uint16_t, float, 2> {
  [[gnu::always_inline]] static Group load(const unsigned char* from) {
    const Ints words = load_vector<std::int32_t>(from);
    return {{float_of(words << 16), float_of(words & kUpper)}};
  }

  [[gnu::always_inline]] static void store(unsigned char* to, const Group& group) {
#if defined(__AVX512BF16__)
    // vcvtne2ps2bf16 flushes denormals and keeps NaN payloads: use it only if there are none.
    constexpr int kDenormalOrNan = 0xa1;
    if ((_mm512_fpclass_ps_mask(group.part[0], kDenormalOrNan) |
         _mm512_fpclass_ps_mask(group.part[1], kDenormalOrNan)) == 0) {
      using Codes = Vector<std::uint16_t>;  // those of part 0, then those of part 1
      const auto codes = reinterpret_cast<Codes>(_mm512_cvtne2ps_pbh(group.part[1], group.part[0]));
      store_vector(to, permute<std::uint16_t>(
                           codes, [](std::size_t i) { return i / 2 + i % 2 * kLanes<float>; }));
      return;
    }
#endif
    const Ints lower = BFloat16::encode_bits(bits_of(group.part[0]));
    const Ints upper = BFloat16::encode_in_place(bits_of(group.part[1])) & kUpper;
    store_vector(to, lower | upper);
  }

 private:
  static constexpr std::int32_t kUpper = INT32_MIN >> 15;
};

#if defined(__F16C__) || defined(__aarch64__)
/// Uses the CPU's float16 conversion. NaNs are replaced first: the CPU keeps payload and sign.
template <>
struct Narrow<Float16> : ElementType<std::uint16_t, float, 1> {
  [[gnu::always_inline]] static Group load(const unsigned char* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof(halves));
    return {{to_floats(halves)}};
  }

  [[gnu::always_inline]] static void store(unsigned char* to, const Group& group) {
    const Halves halves = to_halves(canonical_nans(group.part[0]));
    std::memcpy(to, &halves, sizeof(halves));
  }

 private:
  using Halves [[gnu::vector_size(kVectorBytes / 2)]] = long long;

  static Floats canonical_nans(Floats values) {
    return values == values ? values : all_lanes(float_of(kFloat32Nan));  // NOLINT: NaN differs
  }

#if defined(__AVX512F__)
  // GCC 12 warns about uninitialised variables in its own header for the forms without a mask.
  static constexpr __mmask16 kAllLanes = 0xffff;
  static Floats to_floats(Halves halves) { return _mm512_maskz_cvtph_ps(kAllLanes, halves); }
  static Halves to_halves(Floats floats) {
    return _mm512_maskz_cvtps_ph(kAllLanes, floats, _MM_FROUND_TO_NEAREST_INT);
  }
#elif defined(__F16C__)
  static Floats to_floats(Halves halves) { return _mm256_cvtph_ps(halves); }
  static Halves to_halves(Floats floats) {
    return _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT);
  }
#else
  static Floats to_floats(Halves halves) {
    return vcvt_f32_f16(reinterpret_cast<float16x4_t>(halves));
  }
  static Halves to_halves(Floats floats) { return reinterpret_cast<Halves>(vcvt_f16_f32(floats)); }
#endif
};
#endif

}  // namespace
}  // namespace tccl::kernels
