// Vectors as wide as the registers of the instruction set that the including file is compiled for,
// in the compiler's own notation:
//
//   Vector<float> sum = a + b;               // lane by lane
//   Vector<float> low = a < b ? a : b;       // a comparison gives all ones or zero per lane
//
// An unnamed namespace for the reason given in float_formats.h.
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

/// At any address.
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
