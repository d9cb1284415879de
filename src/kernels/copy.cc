#include "kernels/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tccl::kernels {

#if defined(__x86_64__)

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t to_line = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t head = std::min(bytes, to_line);
  std::memcpy(to, from, head);
  std::size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* line = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  std::memcpy(to + done, from + done, bytes - done);
  _mm_sfence();  // streaming stores are not ordered with the store of a flag
}

bool streaming_pays() {
  static const bool is_amd = __builtin_cpu_is("amd") != 0;
  return is_amd;
}

#else

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
bool streaming_pays() { return false; }

#endif

}  // namespace tccl::kernels
