// The ordered queue of one communicator's collectives and who runs them.
//
// At most one thread runs the queue at a time and runs its operations in the order of issue. That
// thread is the caller of a synchronous operation if nothing is queued; a thread that waits for an
// operation that has not begun; or a driver from the pool. Waking a thread costs tens of
// microseconds, so a waiter does not wait for the driver: whoever comes first runs the operation.
//
// The queue is released before completion callbacks run, so they may issue further operations.
// Where these stand in the order must not depend on when the callback happens to run, for that
// differs from rank to rank: on_done_in_order() leaves a *gate* in the queue, before which they go,
// and which keeps back what was issued later until the callback has returned. Thread-safe.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "communicator/work_state.h"

namespace tccl {

class OperationQueue;

/// Who knows how to run a queue's entries to their end; throws an entry's error.
class Executor {
 public:
  virtual void execute(const Operation& operation, Milliseconds timeout) = 0;
  virtual void execute(const OperationSequence& sequence, Milliseconds timeout) = 0;

 protected:
  ~Executor() = default;
};

/// A started entry: a sequence, or an operation that owns the block lists it was given.
class CollectiveWork final : public WorkState {
 public:
  CollectiveWork(std::shared_ptr<OperationQueue> queue, const Operation& operation,
                 Communicator::CallOptions options);
  CollectiveWork(std::shared_ptr<OperationQueue> queue, OperationSequence sequence,
                 Communicator::CallOptions options);

  void on_done_in_order(std::function<void()> callback) override;
  void execute(Executor& executor) const;
  [[nodiscard]] Milliseconds timeout() const noexcept { return options().timeout; }

 private:
  void help_until_done(Deadline deadline) override;
  [[nodiscard]] std::string description() const override;
  friend class OperationQueue;

  std::shared_ptr<OperationQueue> queue_;
  std::vector<ConstBlock> in_blocks_;
  std::vector<Block> out_blocks_;
  Operation operation_;
  std::optional<OperationSequence> sequence_;
};

class OperationQueue : public std::enable_shared_from_this<OperationQueue> {
 public:
  OperationQueue(ThreadPool& thread_pool, std::string group, Executor& executor,
                 std::function<void()> poll_interrupt)
      : thread_pool_(thread_pool),
        group_(std::move(group)),
        executor_(executor),
        poll_interrupt_(std::move(poll_interrupt)) {}

  /// Runs it here if nothing else is under way; else returns false. `Entry` is an Operation or a
  /// OperationSequence.
  template <class Entry>
  bool try_run(const Entry& entry, Milliseconds timeout);
  template <class Entry>
  std::shared_ptr<CollectiveWork> start(const Entry& entry, Communicator::CallOptions options);
  /// Takes it out of the queue and fails it, if it has not begun.
  bool withdraw(const Work& work, const Error& reason);
  /// Whether the calling thread is running an operation of this queue: in an interrupt, that is.
  [[nodiscard]] bool is_run_by_this_thread() const noexcept;
  /// Takes no further operations and waits until everything that was started is complete.
  void close() noexcept;
  [[nodiscard]] bool is_idle();
  /// Number of operations that were ever issued.
  [[nodiscard]] std::uint32_t issued() const noexcept {
    return issued_.load(std::memory_order_relaxed);
  }

 private:
  using WorkPtr = std::shared_ptr<CollectiveWork>;
  using Queue = std::list<WorkPtr>;  // null: a gate
  class CallbackScope;
  friend class CollectiveWork;

  Queue::iterator add_gate();
  Queue::iterator insert_position();
  [[nodiscard]] CallbackScope* current_scope() const;
  bool release_gates_before(const CollectiveWork& work);
  [[nodiscard]] bool is_blocked_by_callback(const CollectiveWork& work);
  [[nodiscard]] bool has_work() const;
  [[nodiscard]] bool next_is_ready() const { return !entries_.empty() && entries_.front(); }

  /// The mutex, and the end of what takes no lock. All of this class but try_run() locks with it.
  class Lock;
  bool try_take_quickly();
  void release_inline();
  bool try_take_idle();
  WorkPtr try_take_next(Deadline latest);
  void require_open() const;
  void schedule_locked();
  void schedule_if_needed();
  void release(bool stays);
  void execute_and_release(const WorkPtr& work);
  void run_queue();
  [[nodiscard]] const std::string& group() const noexcept { return group_; }
  void help(CollectiveWork& work, Deadline deadline);

  ThreadPool& thread_pool_;
  std::string group_;
  Executor& executor_;
  std::function<void()> poll_interrupt_;
  std::atomic<std::uint32_t> issued_{0};

  /// A synchronous operation of a queue that does nothing else takes no lock: it turns `idle` into
  /// `quick` and back. Whoever else comes locks the mutex and turns the word into `by_mutex`, which
  /// it stays until the queue is idle again.
  enum class Use : std::uint8_t { idle, quick, by_mutex };
  std::atomic<Use> use_{Use::idle};
  std::mutex mutex_;  // guards what follows
  bool closed_ = false;
  bool taken_ = false;      // some thread runs an operation of this queue
  bool scheduled_ = false;  // and has not come yet
  bool watched_ = false;    // the thread that ran the last operation will look at the queue
  Queue entries_;
};

}  // namespace tccl
