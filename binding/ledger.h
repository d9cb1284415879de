// What a group knows of its unfinished work, and whom it tells when some is finished. Shared with
// every Work, which may outlive the group. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace torch_ccl {

class Ledger {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  ~Ledger() { delete hook_.load(std::memory_order_acquire); }

  void begin() noexcept { pending_.fetch_add(1, std::memory_order_relaxed); }
  void end() noexcept {
    pending_.fetch_sub(1, std::memory_order_release);  // pairs with wait_for_all()
    pending_.notify_all();
  }
  /// Until nothing is pending. Bounded by the timeouts of the operations. Not for hooks, which
  /// belong to something pending themselves.
  void wait_for_all() const noexcept {
    while (const auto pending = pending_.load(std::memory_order_acquire))
      pending_.wait(pending, std::memory_order_acquire);
  }

  /// Returns false if there is one already. Moved, never copied: it may own Python objects.
  bool set_hook(Hook&& hook) {
    auto own = std::make_unique<const Hook>(std::move(hook));
    const Hook* expected = nullptr;
    if (!hook_.compare_exchange_strong(expected, own.get(), std::memory_order_acq_rel))
      return false;
    static_cast<void>(own.release());
    return true;
  }
  [[nodiscard]] const Hook* hook() const noexcept {
    return hook_.load(std::memory_order_acquire);  // pairs with set_hook()
  }

 private:
  std::atomic<std::int64_t> pending_{0};
  std::atomic<const Hook*> hook_{nullptr};
};

}  // namespace torch_ccl
