// Lets objects with threads, descriptors and shared memory know that they are now in a forked
// child, where none of these may be used. Thread-safe.
#pragma once

#include <mutex>

namespace tccl {

class ForkAware {
 public:
  /// `guard` is held across fork(), so that the child finds what it protects in good order.
  explicit ForkAware(std::mutex& guard);
  virtual ~ForkAware();
  ForkAware(const ForkAware&) = delete;
  ForkAware& operator=(const ForkAware&) = delete;

  /// Runs in the child, right after fork(), on its only thread.
  virtual void after_fork_in_child() noexcept = 0;

 private:
  friend struct ForkHandlers;
  std::mutex& guard_;
};

}  // namespace tccl
