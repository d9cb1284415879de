// OperationQueue: the collectives of one communicator in issue order, and the threads that run
// them.
//
// One thread at a time runs the queue, in the order of issue. That thread is
//   - the caller of a synchronous operation, if nothing is queued or running;
//   - a thread in wait() for an operation that has not started;
//   - a thread of the pool.
// Waking a thread costs tens of microseconds, so a waiting thread does not wait for the pool:
// whichever thread comes first runs the operation.
//
// States, and who moves between them ("locker": any thread that takes the mutex):
//
//   from        to          by                     when
//   idle        fast_path   caller of try_run      starts; one compare-exchange, no lock
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

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "communicator/work_state.h"
#include "tccl/communicator.h"

namespace tccl {

class Executor;
class OperationQueue;

/// A started entry: a list, or an operation together with copies of its block lists.
class CollectiveWork final : public WorkState {
 public:
  CollectiveWork(std::shared_ptr<OperationQueue> queue, const Operation& operation,
                 Communicator::CallOptions options);
  CollectiveWork(std::shared_ptr<OperationQueue> queue, OperationList list,
                 Communicator::CallOptions options);

  void on_done_in_order(std::function<void()> callback) override;
  void run_on(Executor& executor) const;
  [[nodiscard]] Milliseconds timeout() const noexcept { return options().timeout; }

 private:
  void progress_until_done(Deadline deadline) override;
  [[nodiscard]] std::string description() const override;
  friend class OperationQueue;

  std::shared_ptr<OperationQueue> queue_;
  std::vector<ConstBlock> in_blocks_;
  std::vector<Block> out_blocks_;
  Operation operation_;
  std::optional<OperationList> list_;
};

class OperationQueue : public std::enable_shared_from_this<OperationQueue> {
 public:
  /// `executor` and `thread_pool` must live until close() has returned.
  OperationQueue(ThreadPool& thread_pool, std::string group, Executor& executor,
                 std::function<void()> check_interrupt)
      : thread_pool_(thread_pool),
        group_(std::move(group)),
        executor_(executor),
        check_interrupt_(std::move(check_interrupt)) {}

  /// Runs the entry on this thread if nothing else is queued or running; else returns false.
  /// `Entry` is Operation or OperationList.
  template <class Entry>
  bool try_run(const Entry& entry, Milliseconds timeout);
  template <class Entry>
  std::shared_ptr<CollectiveWork> start(const Entry& entry, Communicator::CallOptions options);
  /// Removes the work from the queue and fails it, unless it has started.
  bool withdraw(const Work& work, const Error& reason);
  /// Whether the calling thread is inside an operation of this queue, such as in an interrupt.
  [[nodiscard]] bool is_run_by_this_thread() const noexcept;
  /// Rejects further operations and waits until all started ones are complete.
  void close() noexcept;
  [[nodiscard]] bool is_idle();
  /// Number of collectives issued so far.
  [[nodiscard]] std::uint32_t issued() const noexcept {
    return issued_.load(std::memory_order_relaxed);
  }

 private:
  using WorkPtr = std::shared_ptr<CollectiveWork>;
  using Entries = std::list<WorkPtr>;  // null: a gate
  enum class State : std::uint8_t { idle, fast_path, ready, running, rechecking };
  class Lock;
  class CallbackScope;
  friend class CollectiveWork;

  /// Throws if the calling thread runs an operation of this queue: another one could never start.
  void require_other_thread(std::string_view call) const;

  // --- without the mutex ---
  bool try_take_fast_path();
  void release_synchronous();
  bool try_take_if_empty();
  WorkPtr try_take_next(Deadline latest);
  void release_to(State next);
  void stop_rechecking();
  void run_entry(const WorkPtr& work);
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
  [[nodiscard]] bool has_work() const;
  [[nodiscard]] bool next_can_start() const { return !entries_.empty() && entries_.front(); }
  void submit_pool_task();
  void require_open() const;

  ThreadPool& thread_pool_;
  std::string group_;
  Executor& executor_;
  std::function<void()> check_interrupt_;
  std::atomic<std::uint32_t> issued_{0};  // relaxed: a counter

  /// Changes without the mutex only between idle and fast_path; see try_take_fast_path() and Lock.
  std::atomic<State> state_{State::idle};
  std::mutex mutex_;  // guards what follows, and all other changes of state_
  bool closed_ = false;
  bool pool_task_pending_ = false;
  Entries entries_;
};

}  // namespace tccl
