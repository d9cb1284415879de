// WorkState: the state of a started operation: completion, error, callbacks and waiting. The base
// of CollectiveWork and P2pWork. See include/tccl/work.h for the contract.
// Thread safety: every method may be called from any thread; complete() once.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fork_hook.h"
#include "base/futex.h"
#include "tccl/communicator.h"
#include "tccl/error.h"

namespace tccl {

class WorkState : public Work, public std::enable_shared_from_this<WorkState> {
 public:
  explicit WorkState(Communicator::CallOptions options) : options_(std::move(options)) {}

  [[nodiscard]] bool done() const noexcept override {
    return state_.load(std::memory_order_acquire) == kDone;  // pairs with complete()
  }
  [[nodiscard]] std::exception_ptr error() const noexcept override {
    return done() ? error_ : nullptr;
  }
  [[nodiscard]] int source() const noexcept override { return source_; }
  void on_done(std::function<void()> callback) override;
  void on_done_in_order(std::function<void()> callback) override { on_done(std::move(callback)); }
  bool cancel() noexcept override { return false; }
  void wait() override { wait_by(Deadline::max()); }
  void wait(Milliseconds timeout) override;

  /// Called once, with no lock held: wakes waiters and runs callbacks, through `run_elsewhere` if
  /// the calling thread must not run user code.
  using Submit = std::function<void(std::function<void()>)>;
  void complete(std::exception_ptr error, const Submit& run_elsewhere = {}) noexcept;

 protected:
  /// Returns when the work is done or the deadline has passed; may run the work on this thread.
  virtual void progress_until_done(Deadline deadline) = 0;
  /// Called once, when the work is done and before its callbacks run.
  virtual void on_completed() noexcept {}
  /// A wait() ends with this error although the work is not done.
  virtual void on_wait_timeout(const Error& /*error*/) noexcept {}
  /// "allreduce of group tp", for error messages.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Sleeps until another thread completes the work, at most until `deadline`; polls for
  /// interrupts.
  void sleep_until_done(Deadline deadline, const std::function<void()>& check_interrupt);
  void set_source(int rank) noexcept { source_ = rank; }
  /// Whether this is a forked child of the process that started the work.
  [[nodiscard]] bool is_in_forked_child() const noexcept { return forks_ != fork_count(); }
  [[nodiscard]] const Communicator::CallOptions& options() const noexcept { return options_; }

 private:
  void wait_by(Deadline deadline);
  bool announce(std::uint32_t bit) noexcept;

  // Bits of state_ while the work runs. A work with neither completes without a lock or a system
  // call.
  static constexpr std::uint32_t kHasCallbacks = 1;
  static constexpr std::uint32_t kHasSleepers = 2;
  static constexpr std::uint32_t kDone = 4;  // alone

  Communicator::CallOptions options_;
  std::atomic<std::uint32_t> state_{0};  // a futex
  std::exception_ptr error_;             // published by state_
  int source_ = -1;                      // published by state_
  const std::uint32_t forks_ = fork_count();
  std::mutex mutex_;  // guards callbacks_, and the transition to kDone if there are any
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace tccl
