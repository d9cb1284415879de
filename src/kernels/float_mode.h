// DefaultFloatMode: round to nearest and keep denormals, while it exists.
//
//   const DefaultFloatMode float_mode;
//   kernel(...);   // a call that the compiler does not inline
//
// On one rank the operation may run on a user thread that flushes denormals, on another on a thread
// of the pool that does not; both must compute the same bits.
// Thread safety: sets the mode of the calling thread.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace tccl::kernels {

#if defined(__SSE__)
struct FloatControl {                                 // the register MXCSR
  static constexpr std::uint64_t kDefault = 0x1f80;   // all exceptions masked, nothing flushed
  static constexpr std::uint64_t kSettings = ~0x3fu;  // all but the sticky exception flags
  static std::uint64_t read() { return _mm_getcsr(); }
  static void write(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
};
#elif defined(__aarch64__)
struct FloatControl {  // the register FPCR; the exception flags are in another one
  static constexpr std::uint64_t kDefault = 0;  // also: NaNs are propagated (DN), IEEE half (AHP)
  static constexpr std::uint64_t kSettings = ~std::uint64_t{0};
  static std::uint64_t read() {
    std::uint64_t value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
};
#else
struct FloatControl {  // the architecture's default is not known here
  static constexpr std::uint64_t kDefault = 0;
  static constexpr std::uint64_t kSettings = 0;
  static std::uint64_t read() { return 0; }
  static void write(std::uint64_t) {}
};
#endif

class DefaultFloatMode {
 public:
  DefaultFloatMode() : saved_(FloatControl::read()) {
    if (changed()) FloatControl::write(FloatControl::kDefault);
  }
  ~DefaultFloatMode() {
    if (changed()) FloatControl::write(saved_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  [[nodiscard]] bool changed() const {
    return (saved_ & FloatControl::kSettings) != FloatControl::kDefault;
  }
  const std::uint64_t saved_;
};

}  // namespace tccl::kernels
