// Runs a function in every forked child, for objects whose threads, descriptors and shared memory
// must not be used there.
// Thread safety: hooks may be made and destroyed on any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

namespace tccl {

/// How many forks separate this process from the one that made the first ForkHook. Unlike getpid(),
/// no system call.
std::uint32_t fork_count() noexcept;

/// During the object's lifetime, `in_child` runs in every forked child right after fork(). `guard`
/// is locked during fork(), so the child finds the data that it protects in a consistent state.
class ForkHook {
 public:
  ForkHook(std::mutex& guard, std::function<void()> in_child);
  ~ForkHook();
  ForkHook(const ForkHook&) = delete;
  ForkHook& operator=(const ForkHook&) = delete;

 private:
  friend struct ForkHandlers;
  std::mutex& guard_;
  std::function<void()> in_child_;
};

}  // namespace tccl
