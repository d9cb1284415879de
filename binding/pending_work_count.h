// The number of a group's unfinished Works that a thread of the library completes, and the group's
// completion hook. Shared with every Work, which may outlive the group.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace torch_ccl {

class PendingWorkCount {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  ~PendingWorkCount() { delete hook_.load(std::memory_order_acquire); }  // pairs with set_hook()

  void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void remove() noexcept {
    count_.fetch_sub(1, std::memory_order_release);  // pairs with the loads of wait_until_none()
    count_.notify_all();
  }
  /// Returns when no Work is pending. Bounded by the timeouts of the operations. A completion hook
  /// must not call it: the Work of the hook is pending until the hook has returned.
  void wait_until_none() const noexcept {
    while (const auto count = count_.load(std::memory_order_acquire))  // pairs with remove()
      count_.wait(count, std::memory_order_acquire);
  }

  /// Returns false if a hook is set already. Moved, never copied: it may own Python objects.
  bool set_hook(Hook&& hook) {
    auto owned = std::make_unique<const Hook>(std::move(hook));
    const Hook* expected = nullptr;
    // The release half pairs with the acquire load in hook().
    if (!hook_.compare_exchange_strong(expected, owned.get(), std::memory_order_acq_rel))
      return false;
    static_cast<void>(owned.release());
    return true;
  }
  [[nodiscard]] const Hook* hook() const noexcept {
    return hook_.load(std::memory_order_acquire);  // pairs with set_hook()
  }

 private:
  std::atomic<std::int64_t> count_{0};
  std::atomic<const Hook*> hook_{nullptr};
};

}  // namespace torch_ccl
