// The copying loops, compiled once per instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/vectors.h"

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see vectors.h

inline void copy_vectors(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  constexpr std::size_t kTurn = 4 * kVectorBytes;
  for (; bytes >= kTurn; to += kTurn, from += kTurn, bytes -= kTurn) {
    Vector<unsigned char> part[4];
    for (std::size_t i = 0; i < 4; ++i)
      part[i] = load_vector<unsigned char>(from + i * kVectorBytes);
    for (std::size_t i = 0; i < 4; ++i) store_vector(to + i * kVectorBytes, part[i]);
  }
  for (; bytes >= kVectorBytes; to += kVectorBytes, from += kVectorBytes, bytes -= kVectorBytes)
    store_vector(to, load_vector<unsigned char>(from));
  copy_few(to, from, bytes);
}

#if defined(__x86_64__)
/// Past the caches. To an address that is a multiple of kVectorBytes.
[[gnu::always_inline]] inline void stream_vector(unsigned char* to, Vector<unsigned char> vector) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i&>(vector));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i&>(vector));
#else
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i&>(vector));
#endif
}
#endif

inline void stream_vectors(unsigned char* to, const unsigned char* from, std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t ahead = -reinterpret_cast<std::uintptr_t>(to) % kVectorBytes;
  if (bytes > ahead) {
    copy_few(to, from, ahead);
    to += ahead, from += ahead, bytes -= ahead;
    for (; bytes >= kVectorBytes; to += kVectorBytes, from += kVectorBytes, bytes -= kVectorBytes)
      stream_vector(to, load_vector<unsigned char>(from));
    _mm_sfence();
  }
#endif
  copy_vectors(to, from, bytes);
}

}  // namespace
}  // namespace tccl::kernels
