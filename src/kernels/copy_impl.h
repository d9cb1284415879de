// The copy loops behind copy.h. Compiled once per instruction set.
// Thread safety: functions without shared state.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/vectors.h"

namespace tccl::kernels {
namespace {  // NOLINT(google-build-namespaces): see vectors.h

inline void copy_vectors(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  constexpr std::size_t kUnrolledBytes = 4 * kVectorBytes;
  for (; bytes >= kUnrolledBytes;
       to += kUnrolledBytes, from += kUnrolledBytes, bytes -= kUnrolledBytes) {
    Vector<unsigned char> part[4];
    for (std::size_t i = 0; i < 4; ++i)
      part[i] = load_vector<unsigned char>(from + i * kVectorBytes);
    for (std::size_t i = 0; i < 4; ++i) store_vector(to + i * kVectorBytes, part[i]);
  }
  for (; bytes >= kVectorBytes; to += kVectorBytes, from += kVectorBytes, bytes -= kVectorBytes)
    store_vector(to, load_vector<unsigned char>(from));
  copy_small(to, from, bytes);
}

#if defined(__x86_64__)
/// Non-temporal store. `to` is a multiple of kVectorBytes.
[[gnu::always_inline]] inline void store_vector_nontemporal(unsigned char* to,
                                                            Vector<unsigned char> vector) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i&>(vector));
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i&>(vector));
#else
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i&>(vector));
#endif
}
#endif

/// Plain stores where there are no non-temporal ones. aarch64's STNP is a hint whose effect depends
/// on the core and has not been measured.
inline void copy_vectors_nontemporal(unsigned char* to, const unsigned char* from,
                                     std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t unaligned = -reinterpret_cast<std::uintptr_t>(to) % kVectorBytes;
  if (bytes > unaligned) {
    copy_small(to, from, unaligned);
    to += unaligned, from += unaligned, bytes -= unaligned;
    for (; bytes >= kVectorBytes; to += kVectorBytes, from += kVectorBytes, bytes -= kVectorBytes)
      store_vector_nontemporal(to, load_vector<unsigned char>(from));
    _mm_sfence();
  }
#endif
  copy_vectors(to, from, bytes);
}

}  // namespace
}  // namespace tccl::kernels
