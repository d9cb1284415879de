// Vectors as wide as the registers of the instruction set that the including file is compiled for,
// by the compiler's vector extensions:
//
//   Vector<float> sum = a + b;               // lane by lane
//   Vector<float> low = a < b ? a : b;       // a comparison gives all ones or zero per lane
//
// The namespace is unnamed for the reason given in float_formats.h.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see above

#if defined(__AVX512F__)
inline constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr std::size_t kVectorBytes = 32;
#else
inline constexpr std::size_t kVectorBytes = 16;
#endif

template <typename T>
struct VectorOf {
  using Type [[gnu::vector_size(kVectorBytes)]] = T;
};

template <typename T>
using Vector = typename VectorOf<T>::Type;

template <typename T>
inline constexpr std::size_t kLanes = kVectorBytes / sizeof(T);

/// Unaligned load.
template <typename T>
[[gnu::always_inline]] inline Vector<T> load_vector(const unsigned char* from) {
  Vector<T> vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <typename V>
[[gnu::always_inline]] inline void store_vector(unsigned char* to, V vector) {
  std::memcpy(to, &vector, sizeof(vector));
}

template <typename T>
[[gnu::always_inline]] inline Vector<T> all_lanes(T value) {
  return value - Vector<T>{};  // not 0 + value, which loses the sign of -0.0
}

/// Loads up to seven bytes, zero-extended.
inline std::uint64_t load_up_to_7(const unsigned char* from, std::size_t bytes) {
  std::uint64_t word = 0;
  if ((bytes & 4) != 0) {
    std::uint32_t part;
    std::memcpy(&part, from + (bytes & 3), 4);
    word = part;
  }
  if ((bytes & 2) != 0) {
    std::uint16_t part;
    std::memcpy(&part, from + (bytes & 1), 2);
    word = word << 16 | part;
  }
  return (bytes & 1) != 0 ? word << 8 | *from : word;
}

/// Loads less than a vector, padded with zeros. It assembles the vector in registers: loading it
/// from memory just written in smaller stores would stall (no store forwarding).
[[gnu::always_inline]] inline Vector<std::uint64_t> load_partial(const unsigned char* from,
                                                                 std::size_t bytes) {
  Vector<std::uint64_t> words{};
  for (std::size_t i = 0; i < kLanes<std::uint64_t>; ++i, from += 8, bytes -= 8) {
    if (bytes < 8) {
      words[i] = load_up_to_7(from, bytes);
      break;
    }
    std::uint64_t word;
    std::memcpy(&word, from, 8);
    words[i] = word;
  }
  return words;
}

/// memcpy() of up to about two vectors, inlined.
inline void copy_small(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  for (; bytes >= 8; to += 8, from += 8, bytes -= 8) std::memcpy(to, from, 8);
  if ((bytes & 4) != 0) std::memcpy(to, from, 4);
  to += bytes & 4, from += bytes & 4;
  if ((bytes & 2) != 0) std::memcpy(to, from, 2);
  to += bytes & 2, from += bytes & 2;
  if ((bytes & 1) != 0) *to = *from;
}

/// Lane i of the result is lane `from(i)` of the vector.
template <typename V, typename From, std::size_t... kLane>
[[gnu::always_inline]] inline V permuted(V vector, From, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(vector, vector, From{}(kLane)...);
}

template <typename T, typename From>
[[gnu::always_inline]] inline Vector<T> permute(Vector<T> vector, From from) {
  return permuted(vector, from, std::make_index_sequence<kLanes<T>>());
}

}  // namespace
}  // namespace tccl::kernels
