// Monotonic clock and absolute deadlines.
// Thread safety: functions without shared state.
#pragma once

#include <algorithm>
#include <chrono>

namespace tccl {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// A timeout of milliseconds::max() gives a deadline that is never reached.
inline Deadline deadline_after(std::chrono::milliseconds timeout) {
  const auto now = Clock::now();
  const auto longest = std::chrono::floor<std::chrono::milliseconds>(Deadline::max() - now);
  return timeout < longest ? now + timeout : Deadline::max();
}

inline std::chrono::milliseconds time_left(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return left.count() > 0 ? left : std::chrono::milliseconds(0);
}

/// Timeout argument for poll(): rounded up, never negative (negative means infinite).
inline int poll_timeout(Deadline deadline) {
  constexpr std::chrono::milliseconds kLongest{1 << 30};
  return static_cast<int>(std::min(time_left(deadline), kLongest).count());
}

/// Spin-loop hint to the CPU.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` does nothing on most cores
#endif
}

}  // namespace tccl
