// Monotonic clock, absolute deadlines, and durations as error messages give them.
// Thread safety: functions without shared state.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>

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

/// "5.0 s", or "20 ms" if it is less than a tenth of a second.
inline std::string text_of(std::chrono::duration<double> seconds) {
  const bool is_short = seconds.count() < 0.1;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), is_short ? "%.0f ms" : "%.1f s",
                is_short ? 1000 * seconds.count() : seconds.count());
  return text.data();
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
