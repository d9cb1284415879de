// How processes of one host see that another has died, stalled or left.
//
// Each process's shared memory begins with a Heartbeat. Its monitor thread holds the robust mutex
// in it; when the process dies the kernel marks the mutex word, within a fraction of a millisecond
// and long before the process's memory is torn down. Waiters read that word with a plain load. A
// pidfd, watched by the monitor thread, is the second witness.
#pragma once

#include <linux/futex.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/crypto.h"
#include "base/futex.h"
#include "base/shared_memory.h"

namespace tccl {

struct Heartbeat {
  Digest token;           // random; proves that a mapping is the memory that was announced
  pthread_mutex_t alive;  // robust, held by the monitor thread
  alignas(64) std::atomic<std::uint32_t> beats;            // rises every kHeartbeatPeriod
  std::atomic<std::uint32_t> departed;                     // 1 after an orderly close
  alignas(64) std::atomic<std::uint32_t> progress_signal;  // wakes the owner's progress thread
};

inline constexpr auto kHeartbeatPeriod = std::chrono::milliseconds(200);
/// No heartbeat for this long means stalled (stopped, swapped out, in a debugger), not dead.
inline constexpr auto kStalledAfter = std::chrono::milliseconds(700);

/// A process (strictly: a context) of this host, mapped once and shared by all groups.
class LocalProcess {
 public:
  LocalProcess(std::shared_ptr<SharedMemory> memory, std::string host, int pid)
      : memory_(std::move(memory)), host_(std::move(host)), pid_(pid) {}

  [[nodiscard]] std::byte* base() const noexcept { return memory_->base(); }
  [[nodiscard]] const Digest& id() const noexcept { return memory_->id(); }
  /// "host b, pid 4711"
  [[nodiscard]] std::string where() const;

  [[nodiscard]] bool died() const noexcept {
    return reaped_.load(std::memory_order_relaxed) || owner_died();
  }
  [[nodiscard]] bool has_departed() const noexcept {
    return heartbeat().departed.load(std::memory_order_acquire) !=
           0;  // pairs with close()'s release
  }
  [[nodiscard]] std::uint32_t beats() const noexcept {
    return heartbeat().beats.load(std::memory_order_relaxed);
  }

  /// Makes it look for messages that no receive waits for yet.
  void wake_progress_thread() const noexcept {
    heartbeat().progress_signal.fetch_add(1, std::memory_order_release);  // pairs with Progress
    futex_wake_all(heartbeat().progress_signal, FutexScope::shared);
  }

  /// The monitor thread saw the process end.
  void mark_reaped() noexcept { reaped_.store(true, std::memory_order_relaxed); }

 private:
  [[nodiscard]] Heartbeat& heartbeat() const noexcept {
    return *reinterpret_cast<Heartbeat*>(base());
  }
  [[nodiscard]] bool owner_died() const noexcept {
    // The futex word is the first member of glibc's mutex; the kernel itself writes the mark.
    const int word = __atomic_load_n(&heartbeat().alive.__data.__lock, __ATOMIC_ACQUIRE);
    return (static_cast<unsigned>(word) & FUTEX_OWNER_DIED) != 0;
  }

  std::shared_ptr<SharedMemory> memory_;
  std::string host_;
  int pid_;
  std::atomic<bool> reaped_{false};
};

}  // namespace tccl
