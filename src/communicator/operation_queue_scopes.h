// The scopes of OperationQueue: what a thread holds while it changes or runs the queue, or runs a
// callback. The table of states in operation_queue.h says when each is taken.
// Thread safety: a scope belongs to the thread that made it.
#pragma once

#include <mutex>
#include <utility>

#include "communicator/operation_queue.h"

namespace tccl {

/// Holds the mutex, and keeps synchronous callers off the fast path meanwhile.
class OperationQueue::Lock {
 public:
  explicit Lock(OperationQueue& queue) : queue_(queue), lock_(queue.mutex_) {
    State seen = queue_.state();
    while (seen == State::idle || seen == State::fast_path) {
      const State next = seen == State::idle ? State::ready : State::running;
      // Acquire: pairs with the release in release_synchronous().
      if (queue_.state_.compare_exchange_weak(seen, next, std::memory_order_acq_rel,
                                              std::memory_order_relaxed))
        break;
    }
  }
  ~Lock() {
    if (queue_.state() == State::ready && !queue_.closed_ && queue_.entries_.empty())
      queue_.state_.store(State::idle,
                          std::memory_order_release);  // pairs with try_take_fast_path()
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  OperationQueue& queue_;
  std::lock_guard<std::mutex> lock_;
};

/// Exists while this thread runs a callback that has a gate in `queue`. Scopes of one thread nest
/// only if a callback calls on_done_in_order() on a completed Work, or withdraws one: run_entry()
/// sends the callbacks of other operations to the pool.
class OperationQueue::CallbackScope {
 public:
  CallbackScope(OperationQueue& queue, Entries::iterator gate)
      : queue_(queue), gate_(gate), outer_(innermost_scope) {
    innermost_scope = this;
  }
  ~CallbackScope() {
    innermost_scope = outer_;
    const Lock lock(queue_);
    remove_gate();
    if (queue_.state() != State::running && queue_.needs_pool()) queue_.submit_pool_task();
  }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static CallbackScope* innermost() { return innermost_scope; }
  [[nodiscard]] CallbackScope* outer() const { return outer_; }
  [[nodiscard]] bool has_gate_in(const OperationQueue& queue) const {
    return &queue_ == &queue && !removed_;
  }
  [[nodiscard]] Entries::iterator gate() const { return gate_; }
  /// With the queue's mutex held.
  void remove_gate() {
    if (!std::exchange(removed_, true)) queue_.entries_.erase(gate_);
  }

 private:
  static thread_local CallbackScope* innermost_scope;
  OperationQueue& queue_;
  Entries::iterator gate_;
  bool removed_ = false;
  CallbackScope* outer_;
};

/// Takes the fast path if it is free, and releases it at the end of the scope.
class OperationQueue::FastPath {
 public:
  explicit FastPath(OperationQueue& queue) : queue_(queue), taken_(queue.try_take_fast_path()) {}
  ~FastPath() {
    if (taken_) queue_.release_synchronous();
  }
  FastPath(const FastPath&) = delete;
  FastPath& operator=(const FastPath&) = delete;
  [[nodiscard]] bool is_taken() const { return taken_; }

 private:
  OperationQueue& queue_;
  bool taken_;
};

}  // namespace tccl
