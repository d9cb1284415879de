// The ordered queue of one communicator's collectives and who runs them.
//
// At most one thread runs the lane at a time and runs its operations in the order of issue. That
// thread is the caller of a synchronous operation if nothing is queued; a thread that waits for an
// operation that has not begun; or a driver from the pool. Waking a thread costs tens of
// microseconds, so a waiter does not wait for the driver: whoever comes first runs the operation.
// The lane is released before completion callbacks run, so they may issue further operations.
// Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "communicator/drivers.h"
#include "communicator/work.h"

namespace tccl {

class Lane;

/// A started collective: an operation that owns the block lists it was given.
class CollectiveWork final : public WorkState {
 public:
  CollectiveWork(std::shared_ptr<Lane> lane, const Operation& operation,
                 Communicator::CallOptions options);

  [[nodiscard]] const Operation& operation() const noexcept { return operation_; }
  [[nodiscard]] Milliseconds timeout() const noexcept { return options().timeout; }

 private:
  void help_until_done(Deadline deadline) override;
  [[nodiscard]] std::string description() const override;
  friend class Lane;

  std::shared_ptr<Lane> lane_;
  std::vector<ConstBlock> in_blocks_;
  std::vector<Block> out_blocks_;
  Operation operation_;
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  /// `execute` runs one operation to its end and throws its error.
  using Execute = std::function<void(const Operation&, Milliseconds timeout)>;
  Lane(Drivers& drivers, std::string group, Execute execute, std::function<void()> poll_interrupt)
      : drivers_(drivers),
        group_(std::move(group)),
        execute_(std::move(execute)),
        poll_interrupt_(std::move(poll_interrupt)) {}

  void run(const Operation& operation, const Communicator::CallOptions& options);
  std::shared_ptr<CollectiveWork> start(const Operation& operation,
                                        Communicator::CallOptions options);
  /// Takes no further operations and waits until everything that was started is complete.
  void close() noexcept;
  [[nodiscard]] bool is_idle() const;
  /// Number of operations that were ever issued.
  [[nodiscard]] std::uint32_t issued() const noexcept {
    return issued_.load(std::memory_order_relaxed);
  }

 private:
  using WorkPtr = std::shared_ptr<CollectiveWork>;
  friend class CollectiveWork;

  bool try_take_idle();
  WorkPtr try_take_next(Deadline latest);
  void require_open() const;
  void call_driver_locked();
  void call_driver_if_needed();
  void release(bool stays);
  void execute_and_release(const WorkPtr& work);
  void drive();
  void help(CollectiveWork& work, Deadline deadline);

  Drivers& drivers_;
  std::string group_;
  Execute execute_;
  std::function<void()> poll_interrupt_;
  std::atomic<std::uint32_t> issued_{0};
  mutable std::mutex mutex_;  // guards what follows
  bool closed_ = false;
  bool taken_ = false;          // some thread runs an operation of this lane
  bool driver_called_ = false;  // and has not come yet
  bool watched_ = false;        // the thread that ran the last operation will look at the queue
  std::deque<WorkPtr> queue_;
};

}  // namespace tccl
