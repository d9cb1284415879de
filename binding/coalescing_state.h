// The Works of the calls between startCoalescing() and endCoalescing(), which torch sees as one.
//
// Each thread has its own coalescing block. A call that throws ends the block, because torch does
// not call endCoalescing() then.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <vector>

namespace torch_ccl {

class CoalescingState {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  /// Opens a block of the calling thread. If it left one open, that one is discarded.
  void begin() {
    const std::lock_guard lock(mutex_);
    works_by_thread_[std::this_thread::get_id()].clear();
    open_blocks_.store(works_by_thread_.size(), std::memory_order_relaxed);
  }

  /// Whether the calling thread has an open block.
  [[nodiscard]] bool is_open() {
    // A thread sees its own begin(), so the common case takes no lock.
    if (open_blocks_.load(std::memory_order_relaxed) == 0) return false;
    const std::lock_guard lock(mutex_);
    return works_by_thread_.contains(std::this_thread::get_id());
  }

  /// Does nothing if the calling thread has no open block.
  void add(const c10::intrusive_ptr<c10d::Work>& work) {
    if (!is_open()) return;
    const std::lock_guard lock(mutex_);
    if (const auto found = works_by_thread_.find(std::this_thread::get_id());
        found != works_by_thread_.end())
      found->second.push_back(work);
  }

  /// Closes the calling thread's block and returns its Works in the order in which they were added.
  Works end() {
    const std::lock_guard lock(mutex_);
    auto block = works_by_thread_.extract(std::this_thread::get_id());
    open_blocks_.store(works_by_thread_.size(), std::memory_order_relaxed);
    return block ? std::move(block.mapped()) : Works();
  }

  /// Closes the calling thread's block, if it has one. The operations in it continue.
  void discard() {
    if (is_open()) end();
  }

 private:
  // Relaxed: a thread needs only what it wrote itself, the count that includes its own block.
  std::atomic<std::size_t> open_blocks_{0};
  std::mutex mutex_;  // guards works_by_thread_
  std::unordered_map<std::thread::id, Works> works_by_thread_;
};

}  // namespace torch_ccl
