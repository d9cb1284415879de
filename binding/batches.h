// Calls between startCoalescing() and endCoalescing(), which torch sees as one Work.
//
// Each thread has its own batch. A call that throws ends it, for torch does not call
// endCoalescing() then. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <vector>

namespace torch_ccl {

class Batches {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  /// One that was left open by this thread is forgotten; its works go on by themselves.
  void begin() {
    const std::lock_guard lock(mutex_);
    batches_[std::this_thread::get_id()].clear();
    open_.store(batches_.size(), std::memory_order_relaxed);
  }

  /// Whether the calling thread stands in a batch.
  [[nodiscard]] bool is_open() {
    // A thread sees its own begin(), so the usual case takes no lock.
    if (open_.load(std::memory_order_relaxed) == 0) return false;
    const std::lock_guard lock(mutex_);
    return batches_.contains(std::this_thread::get_id());
  }

  /// Does nothing outside of a batch.
  void add(const c10::intrusive_ptr<c10d::Work>& work) {
    const std::lock_guard lock(mutex_);
    if (const auto batch = batches_.find(std::this_thread::get_id()); batch != batches_.end())
      batch->second.push_back(work);
  }

  /// Ends the calling thread's batch.
  Works take() {
    const std::lock_guard lock(mutex_);
    auto batch = batches_.extract(std::this_thread::get_id());
    open_.store(batches_.size(), std::memory_order_relaxed);
    return batch ? std::move(batch.mapped()) : Works();
  }
  void abandon() {
    if (is_open()) take();
  }

 private:
  std::atomic<std::size_t> open_{0};  // relaxed: only a thread's own batch matters to it
  std::mutex mutex_;                  // guards what follows
  std::unordered_map<std::thread::id, Works> batches_;
};

}  // namespace torch_ccl
