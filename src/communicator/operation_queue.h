// OperationQueue: the collectives of one communicator in issue order, and the threads that run
// them.
//
// One thread at a time runs the queue, in the order of issue. That thread is
//   - the caller of a synchronous operation, if nothing is queued or running;
//   - a thread in wait() for an operation that has not started;
//   - a thread of the pool.
// Waking a thread costs tens of microseconds, so a waiting thread does not wait for the pool:
// whichever thread comes first runs the operation. And a small operation that is issued while
// nothing is queued is only *posted*: start() contributes this rank's data, and no thread is woken.
// Posted operations are the head of the queue. They are completed, in order, by a thread in wait(),
// by the next synchronous caller, or by a thread of the pool if on_done() is called or nobody comes
// within about a millisecond.
//
// States, and who moves between them ("locker": any thread that takes the mutex):
//
//   from        to          by                     when
//   idle        fast_path   caller of try_run,     starts, posts or completes; one
//                           start, or a waiter     compare-exchange, no lock
//   fast_path   idle        the same thread        ends; one compare-exchange, no lock
//   fast_path   running     locker                 the thread on the fast path finds this when it
//                                                  ends, and ends as from `running`
//   idle        ready       locker                 keeps others off the fast path while it holds
//                                                  the mutex
//   ready       idle        locker, on unlocking   nothing is queued and the queue is not closed
//   ready       running     caller, waiter, pool   takes the next entry
//   running     ready       caller of try_run      ends; submits a pool task if an entry can start
//   running     rechecking  waiter, pool           ends; this thread will look at the queue again,
//                                                  so start() need not submit a pool task meanwhile
//   rechecking  running     caller, waiter, pool   takes the next entry
//   rechecking  ready       the rechecking thread  finds no entry that it may take, or is about to
//                                                  run callbacks or to sleep; submits a pool task
//                                                  if an entry can start
//
// Independent of the state, pool_task_pending_ is set from the submission of a pool task until the
// task runs: a waiter often runs the entry before the pool thread wakes, and a second task would
// wake a second thread for nothing.
//
// Gates. The queue is released before completion callbacks run, so callbacks may issue operations.
// A callback runs at a different time on each rank; on_done_in_order() makes the order the same
// everywhere. It inserts a *gate*: what the callback issues is inserted before the gate, and what
// is behind the gate does not start until the callback has returned and the gate is removed.
//
//   auto x = start(op_x);                          // queue: x
//   x->on_done_in_order([&] { run(op_y); });       // queue: x | gate
//   start(op_z);                                   // queue: x | gate | z
//   // x completes; the callback issues y:         // queue: y | gate | z
//   // the callback returns:                       // queue: z          every rank runs x, y, z
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/block_cache.h"
#include "base/thread_pool.h"
#include "communicator/collective_work.h"
#include "communicator/executor.h"
#include "tccl/communicator.h"

namespace tccl {

class ProgressThread;

class OperationQueue : public std::enable_shared_from_this<OperationQueue> {
 public:
  /// `executor` and `thread_pool` must live until close() has returned.
  OperationQueue(ThreadPool& thread_pool, std::string group, Executor& executor,
                 std::uint32_t first_sequence, std::function<void()> check_interrupt,
                 ProgressThread& progress_thread)
      : thread_pool_(thread_pool),
        group_(std::move(group)),
        executor_(executor),
        check_interrupt_(std::move(check_interrupt)),
        progress_thread_(progress_thread),
        next_sequence_(first_sequence) {}

  /// Runs the entry on this thread if nothing else is queued or running; else returns false.
  /// `Entry` is Operation or OperationList. `sequence` may be null: see CallOptions.
  template <class Entry>
  bool try_run(const Entry& entry, Milliseconds timeout, std::uint32_t* sequence);
  template <class Entry>
  std::shared_ptr<CollectiveWork> start(const Entry& entry, Communicator::CallOptions options);
  /// Removes the work from the queue and fails it, unless it has started.
  bool withdraw(const Work& work, const Error& reason);
  /// Whether the calling thread is inside an operation of this queue, such as in an interrupt.
  [[nodiscard]] bool is_run_by_this_thread() const noexcept;
  /// Rejects further operations and waits until all started ones are complete.
  void close() noexcept;
  [[nodiscard]] bool is_idle();
  /// Whether posted operations are not complete; for the progress thread.
  [[nodiscard]] bool has_posted() const noexcept {
    return posted_total_.load(std::memory_order_relaxed) !=
           completed_total_.load(std::memory_order_relaxed);
  }
  /// Called by the progress thread about once a millisecond while has_posted(). If none has been
  /// completed for a millisecond, a pool thread completes the first one.
  void complete_unawaited();
  /// Of the next collective that is issued.
  [[nodiscard]] std::uint32_t next_sequence() const noexcept {
    return next_sequence_.load(std::memory_order_relaxed);
  }

 private:
  using WorkPtr = std::shared_ptr<CollectiveWork>;
  using Entries = std::list<WorkPtr>;  // null: a gate
  enum class State : std::uint8_t { idle, fast_path, ready, running, rechecking };
  class Lock;
  class FastPath;
  class CallbackScope;
  friend class CollectiveWork;

  /// Two threads never get the same numbers. A gate may make an entry run earlier than its number.
  void take_sequence(std::uint32_t operations, std::uint32_t* sequence) {
    const auto first = next_sequence_.fetch_add(operations, std::memory_order_relaxed);
    if (sequence) *sequence = first;
  }
  /// Throws if the calling thread runs an operation of this queue: another one could never start.
  void require_other_thread(std::string_view call) const;

  // --- without the mutex ---
  bool try_take_fast_path();
  void release_synchronous();
  bool try_post(const WorkPtr& work, std::uint32_t* sequence);
  /// By the thread that runs the queue, or is about to.
  WorkPtr pop_posted();
  static bool may_outlast(const CollectiveWork& work, Deadline deadline);
  template <class MayTake, class Complete>
  bool complete_first_posted(const MayTake& may_take, const Complete& complete);
  bool complete_posted_until_done(const CollectiveWork& work, Deadline deadline);
  void complete_arrived();
  void complete_with_callbacks_on_pool(CollectiveWork& work, const std::exception_ptr& error);
  void complete_posted_before_run();
  void complete_on_pool(CollectiveWork& work);
  void finish(const WorkPtr& work, const std::exception_ptr& error);
  bool try_take_if_empty();
  WorkPtr try_take_next(Deadline latest);
  void release_to(State next);
  void stop_rechecking();
  /// `error`: of the operation. `interrupt`: what ended it, for the call in which it came.
  struct Outcome {
    std::exception_ptr error;
    std::exception_ptr interrupt;
  };
  Outcome run_catching(const CollectiveWork& work);
  std::exception_ptr run_entry(const WorkPtr& work);
  void run_on_pool();
  void run_queue_until_done(CollectiveWork& work, Deadline deadline);
  WorkPtr last_work();
  Entries::iterator add_gate();
  bool remove_own_gates_before(const CollectiveWork& work);
  [[nodiscard]] bool is_blocked_by_callback(const CollectiveWork& work);

  // --- with the mutex held, by Lock ---
  [[nodiscard]] State state() const { return state_.load(std::memory_order_relaxed); }
  void set_state(State state) { state_.store(state, std::memory_order_relaxed); }
  Entries::iterator insert_position();
  [[nodiscard]] CallbackScope* current_scope() const;
  [[nodiscard]] bool next_can_start() const { return !entries_.empty() && entries_.front(); }
  /// Whether the pool has something to run; not while another thread runs the queue.
  [[nodiscard]] bool needs_pool() const;
  void submit_pool_task();
  void require_open() const;

  ThreadPool& thread_pool_;
  std::string group_;
  std::shared_ptr<BlockCache> work_cache_ = std::make_shared<BlockCache>();
  Executor& executor_;
  std::function<void()> check_interrupt_;
  ProgressThread& progress_thread_;
  std::atomic<std::uint32_t> next_sequence_;       // relaxed: a counter
  std::atomic<std::uint32_t> posted_total_{0};     // relaxed: a counter
  std::atomic<std::uint32_t> completed_total_{0};  // of the posted ones; relaxed: a counter
  /// Started operations that are not done; on_completed() releases, is_idle() acquires.
  std::atomic<std::uint32_t> unfinished_{0};
  // Used by complete_unawaited() alone.
  std::uint32_t completed_before_ = std::numeric_limits<std::uint32_t>::max();
  Clock::time_point unchanged_since_;

  /// Operations that the executor has posted, in order. They belong to the thread that runs the
  /// queue; if none does, to who holds the mutex.
  std::array<WorkPtr, Executor::kMaxPosted> posted_;
  std::size_t posted_count_ = 0;

  /// Changes without the mutex only between idle and fast_path; see try_take_fast_path() and Lock.
  std::atomic<State> state_{State::idle};
  std::mutex mutex_;  // guards what follows, and all other changes of state_
  bool closed_ = false;
  bool pool_task_pending_ = false;
  Entries entries_;
};

}  // namespace tccl
