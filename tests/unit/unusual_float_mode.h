// UnusualFloatMode: while it exists, the calling thread rounds towards zero and flushes denormals,
// as a user's thread may. On architectures other than x86-64 and aarch64 it has no effect.
#pragma once

#include <cstdint>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace tccl {

class UnusualFloatMode {
 public:
  UnusualFloatMode() : saved_(read()) { write(saved_ | kUnusual); }
  ~UnusualFloatMode() { write(saved_); }
  UnusualFloatMode(const UnusualFloatMode&) = delete;
  UnusualFloatMode& operator=(const UnusualFloatMode&) = delete;

  static bool is_set() { return (read() & kUnusual) == kUnusual; }

 private:
#if defined(__SSE__)
  // towards zero, flush to zero, denormals are zero
  static constexpr std::uint64_t kUnusual = 0xe040;
  static std::uint64_t read() { return _mm_getcsr(); }
  static void write(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
  // default NaN, flush to zero, towards zero; alternative half precision
  static constexpr std::uint64_t kUnusual = 7u << 24 | 3u << 22;
  static std::uint64_t read() {
    std::uint64_t value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value) : : "memory");
    return value;
  }
  static void write(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
  static constexpr std::uint64_t kUnusual = 0;
  static std::uint64_t read() { return 0; }
  static void write(std::uint64_t) {}
#endif

  const std::uint64_t saved_;
};

}  // namespace tccl
