// Lets objects with threads, descriptors and shared memory know that they are now in a forked
// child, where none of these may be used. Thread-safe.
#pragma once

#include <functional>
#include <mutex>

namespace tccl {

/// While it lives, `in_child` runs in every forked child, right after fork(), on its only thread.
/// `guard` is held across fork(), so that the child finds what it protects in good order.
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
