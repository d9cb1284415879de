// A process of this host, whose shared memory is mapped here: see process_page.h for how its death
// is detected. A pidfd, watched by the monitor thread, is the fallback.
// Thread safety: every method may be called from any thread.
#pragma once

#include <linux/futex.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/futex.h"
#include "base/shared_memory.h"
#include "health/process_page.h"

namespace tccl {

/// A process (strictly: a context), mapped once and shared by all groups.
class LocalProcess {
 public:
  LocalProcess(std::shared_ptr<SharedMemory> memory, std::string host, int pid)
      : memory_(std::move(memory)), host_(std::move(host)), pid_(pid) {}

  [[nodiscard]] std::byte* base() const noexcept { return memory_->base(); }
  [[nodiscard]] const Bytes32& id() const noexcept { return memory_->id(); }
  /// "host b, pid 4711"
  [[nodiscard]] std::string where() const;

  [[nodiscard]] bool died() const noexcept {
    // Relaxed: a flag that orders nothing; set by mark_exited().
    return exited_.load(std::memory_order_relaxed) || owner_died();
  }
  [[nodiscard]] bool has_departed() const noexcept {
    // Pairs with the release in Monitor::stop().
    return page().departed.load(std::memory_order_acquire) != 0;
  }
  [[nodiscard]] std::uint32_t heartbeats() const noexcept {
    // Relaxed: only changes of the counter matter; incremented in Monitor::main().
    return page().heartbeats.load(std::memory_order_relaxed);
  }

  /// Makes it look for messages for which it has posted no receive yet.
  void wake_progress_thread() const noexcept {
    // Pairs with the acquire load in the owner's progress thread.
    page().progress_signal.fetch_add(1, std::memory_order_release);
    futex_wake_all(page().progress_signal, FutexScope::shared);
  }

  /// The monitor thread saw in its pidfd that the process has exited.
  void mark_exited() noexcept { exited_.store(true, std::memory_order_relaxed); }

 private:
  [[nodiscard]] ProcessPage& page() const noexcept {
    return *reinterpret_cast<ProcessPage*>(base());
  }
  [[nodiscard]] bool owner_died() const noexcept {
    // The futex word is the first member of glibc's mutex. The kernel writes FUTEX_OWNER_DIED;
    // acquire: what the process wrote before it died is visible.
    const int word = __atomic_load_n(&page().liveness_mutex.__data.__lock, __ATOMIC_ACQUIRE);
    return (static_cast<unsigned>(word) & FUTEX_OWNER_DIED) != 0;
  }

  std::shared_ptr<SharedMemory> memory_;
  std::string host_;
  int pid_;
  std::atomic<bool> exited_{false};
};

}  // namespace tccl
