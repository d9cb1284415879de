// Sleeping on a 32-bit word. Wake-ups may be spurious: callers check their condition again.
// Thread safety: every function may be called from any thread.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include "base/clock.h"

namespace tccl {

/// `shared`: the word is in memory that several processes map. `local`: one process only; cheaper.
enum class FutexScope { local, shared };

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 &&
              std::atomic<std::uint32_t>::is_always_lock_free);

inline int futex_flag(FutexScope scope) {
  return scope == FutexScope::local ? FUTEX_PRIVATE_FLAG : 0;
}

/// Sleeps while the word equals `expected`, at most for `timeout`.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       Clock::duration timeout, FutexScope scope) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count();
  if (ns <= 0) return;
  const timespec limit{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT | futex_flag(scope),
            expected, &limit, nullptr, 0);
}

inline void futex_wake(std::atomic<std::uint32_t>& word, int how_many, FutexScope scope) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE | futex_flag(scope),
            how_many, nullptr, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word, FutexScope scope) {
  futex_wake(word, INT_MAX, scope);
}

}  // namespace tccl
