#include "communicator/operation_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/interrupt.h"
#include "communicator/progress_thread.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// A posted operation that nobody has completed within this time goes to the thread pool.
constexpr std::chrono::milliseconds kAwaitedWithin{1};

}  // namespace

CollectiveWork::CollectiveWork(std::shared_ptr<OperationQueue> queue, const Operation& operation,
                               Communicator::CallOptions options)
    : WorkState(std::move(options)),
      queue_(std::move(queue)),
      in_blocks_(operation.in_blocks.begin(), operation.in_blocks.end()),
      out_blocks_(operation.out_blocks.begin(), operation.out_blocks.end()),
      operation_(operation) {
  operation_.in_blocks = in_blocks_;
  operation_.out_blocks = out_blocks_;
}

CollectiveWork::CollectiveWork(std::shared_ptr<OperationQueue> queue, OperationList list,
                               Communicator::CallOptions options)
    : WorkState(std::move(options)), queue_(std::move(queue)), list_(std::move(list)) {}

void CollectiveWork::run_on(Executor& executor) const {
  if (is_posted_) return executor.complete_posted();
  list_ ? executor.run(*list_, timeout()) : executor.run(operation_, timeout());
}

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

thread_local OperationQueue::CallbackScope* OperationQueue::CallbackScope::innermost_scope =
    nullptr;

void CollectiveWork::on_done_in_order(std::function<void()> callback) {
  on_done([queue = queue_, gate = queue_->add_gate(), callback = std::move(callback)] {
    const OperationQueue::CallbackScope scope(*queue, gate);
    callback();
  });
}

void CollectiveWork::on_done(std::function<void()> callback) {
  WorkState::on_done(std::move(callback));
  if (is_unfinished_post()) queue_->complete_on_pool(*this);
}

bool CollectiveWork::test() noexcept {
  if (is_unfinished_post()) queue_->complete_arrived();
  return done();
}

void CollectiveWork::on_completed() noexcept {
  queue_->unfinished_.fetch_sub(1, std::memory_order_release);  // pairs with is_idle()
}

void CollectiveWork::progress_until_done(Deadline deadline) {
  if (is_posted_ && queue_->complete_posted_until_done(*this, deadline)) return;
  queue_->run_queue_until_done(*this, deadline);
}

std::string CollectiveWork::description() const {
  return formatted("{} of group {}", list_ ? list_->name : name_of(operation_.op), queue_->group_);
}

namespace {

std::uint32_t operations_in(const Operation& /*operation*/) { return 1; }
std::uint32_t operations_in(const OperationList& list) { return list.operations; }

/// Exists while this thread runs an operation of `queue`. Marks nest: an interrupt may run
/// operations of other queues.
class RunningMark {
 public:
  explicit RunningMark(const OperationQueue* queue)
      : queue_(queue), outer_(std::exchange(innermost_mark, this)) {}
  ~RunningMark() { innermost_mark = outer_; }
  RunningMark(const RunningMark&) = delete;
  RunningMark& operator=(const RunningMark&) = delete;

  static bool is_set_for(const OperationQueue* queue) {
    const RunningMark* mark = innermost_mark;
    while (mark && mark->queue_ != queue) mark = mark->outer_;
    return mark != nullptr;
  }

 private:
  static thread_local const RunningMark* innermost_mark;
  const OperationQueue* queue_;
  const RunningMark* outer_;
};

thread_local const RunningMark* RunningMark::innermost_mark = nullptr;

std::string_view name_of(const Operation& operation) { return name_of(operation.op); }
std::string_view name_of(const OperationList& list) { return list.name; }

}  // namespace

bool OperationQueue::is_run_by_this_thread() const noexcept {
  return RunningMark::is_set_for(this);
}

void OperationQueue::require_other_thread(std::string_view call) const {
  if (!is_run_by_this_thread()) return;
  throw Error(Errc::aborted,
              formatted("{} of group {} was called in a signal handler, which interrupts an "
                        "operation of the same group on the same thread: it could start only after "
                        "the handler has returned",
                        call, group_));
}

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

template <class Entry>
bool OperationQueue::try_run(const Entry& entry, Milliseconds timeout, std::uint32_t* sequence) {
  if (!try_take_fast_path()) {
    require_other_thread(name_of(entry));
    if (!try_take_if_empty()) return false;
  }
  take_sequence(operations_in(entry), sequence);
  struct Release {
    OperationQueue& queue;
    ~Release() { queue.release_synchronous(); }
  } release{*this};
  if (posted_count_ != 0) complete_posted_before_run();
  try {
    const RunningMark mark(this);
    executor_.run(entry, timeout);
  } catch (const InterruptedOperation& error) {
    error.throw_interrupt();
  }
  return true;
}

template <class Entry>
std::shared_ptr<CollectiveWork> OperationQueue::start(const Entry& entry,
                                                      Communicator::CallOptions options) {
  std::uint32_t* const sequence = std::exchange(options.sequence, nullptr);
  auto work = std::allocate_shared<CollectiveWork>(CachingAllocator<CollectiveWork>(work_cache_),
                                                   shared_from_this(), entry, std::move(options));
  if (try_post(work, sequence)) return work;
  const Lock lock(*this);
  require_open();
  entries_.insert(insert_position(), work);
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  take_sequence(operations_in(entry), sequence);
  // Also if the caller will wait at once: it may not, and the peers need this rank. A running or
  // rechecking thread looks at the queue when it is done.
  if (state() == State::ready && next_can_start()) submit_pool_task();
  return work;
}

template bool OperationQueue::try_run(const Operation&, Milliseconds, std::uint32_t*);
template bool OperationQueue::try_run(const OperationList&, Milliseconds, std::uint32_t*);
template std::shared_ptr<CollectiveWork> OperationQueue::start(const Operation&,
                                                               Communicator::CallOptions);
template std::shared_ptr<CollectiveWork> OperationQueue::start(const OperationList&,
                                                               Communicator::CallOptions);

// --- posted operations ---

bool OperationQueue::try_post(const WorkPtr& work, std::uint32_t* sequence) {
  if (work->list_) return false;
  {
    const FastPath fast_path(*this);
    if (!fast_path.is_taken() || !executor_.try_post(work->operation_, work->timeout()))
      return false;
    work->is_posted_ = true;
    unfinished_.fetch_add(1, std::memory_order_relaxed);
    posted_[posted_count_++] = work;
    posted_total_.fetch_add(1, std::memory_order_relaxed);
    take_sequence(1, sequence);
  }
  complete_arrived();
  if (!work->done()) progress_thread_.notify();
  return true;
}

OperationQueue::WorkPtr OperationQueue::pop_posted() {
  WorkPtr first = std::move(posted_[0]);
  std::shift_left(posted_.begin(), posted_.end(), 1);
  --posted_count_;
  completed_total_.fetch_add(1, std::memory_order_relaxed);
  return first;
}

/// Whether the operation, if it began now, might run beyond the deadline of the wait for it.
bool OperationQueue::may_outlast(const CollectiveWork& work, Deadline deadline) {
  constexpr Milliseconds kSlack{10};  // a wait with the operation's own timeout takes it over
  return deadline != Deadline::max() && deadline + kSlack < deadline_after(work.timeout());
}

/// Returns false if another thread runs the queue, or if the operation might run beyond `deadline`.
bool OperationQueue::complete_posted_until_done(const CollectiveWork& work, Deadline deadline) {
  while (!work.done()) {
    WorkPtr next;
    Outcome outcome;
    {
      const FastPath fast_path(*this);
      if (!fast_path.is_taken() || posted_count_ == 0) return false;
      if (may_outlast(*posted_[0], deadline)) return false;
      next = pop_posted();
      outcome = run_catching(*next);
    }
    finish(next, outcome.error);
    if (outcome.interrupt) std::rethrow_exception(outcome.interrupt);
  }
  return true;
}

/// Completes posted operations without waiting for another rank. Callbacks run on the pool: the
/// caller of start() or test() expects neither to wait nor to run them.
void OperationQueue::complete_arrived() {
  for (;;) {
    WorkPtr next;
    Outcome outcome;
    {
      const FastPath fast_path(*this);
      if (!fast_path.is_taken() || !executor_.posted_has_arrived()) return;
      next = pop_posted();
      outcome = run_catching(*next);
    }
    complete_with_callbacks_on_pool(*next, outcome.error);
  }
}

void OperationQueue::complete_with_callbacks_on_pool(CollectiveWork& work,
                                                     const std::exception_ptr& error) {
  work.complete(error, [this](std::function<void()> callbacks) {
    thread_pool_.submit(std::move(callbacks));
  });
}

/// By the thread that runs the queue: no callback may run here.
void OperationQueue::complete_posted_before_run() {
  while (posted_count_ != 0) {
    const WorkPtr next = pop_posted();
    const Outcome outcome = run_catching(*next);
    complete_with_callbacks_on_pool(*next, outcome.error);
    if (outcome.interrupt) std::rethrow_exception(outcome.interrupt);
  }
}

void OperationQueue::complete_on_pool(CollectiveWork& work) {
  const Lock lock(*this);
  work.is_for_pool_ = true;
  if (state() == State::ready && needs_pool()) submit_pool_task();
}

void OperationQueue::complete_unawaited() {
  const std::uint32_t completed = completed_total_.load(std::memory_order_relaxed);
  const auto now = Clock::now();
  if (completed != completed_before_) {
    completed_before_ = completed;
    unchanged_since_ = now;
  }
  if (now - unchanged_since_ < kAwaitedWithin) return;
  const Lock lock(*this);
  if (state() != State::ready || posted_count_ == 0) return;
  posted_[0]->is_for_pool_ = true;
  submit_pool_task();
}

bool OperationQueue::needs_pool() const {
  return next_can_start() || std::any_of(posted_.begin(), posted_.begin() + posted_count_,
                                         [](const WorkPtr& work) { return work->is_for_pool_; });
}

// --- gates ---

OperationQueue::Entries::iterator OperationQueue::add_gate() {
  const Lock lock(*this);
  return entries_.insert(insert_position(), nullptr);
}

/// Where entries of the calling thread are inserted: at the end, or before its callback's gate.
OperationQueue::Entries::iterator OperationQueue::insert_position() {
  const CallbackScope* scope = current_scope();
  return scope ? scope->gate() : entries_.end();
}

/// The innermost callback of the calling thread that has a gate in this queue, or null.
OperationQueue::CallbackScope* OperationQueue::current_scope() const {
  CallbackScope* scope = CallbackScope::innermost();
  while (scope && !scope->has_gate_in(*this)) scope = scope->outer();
  return scope;
}

/// A callback that waits for work behind its own gate must not block it. Returns whether a gate was
/// removed.
bool OperationQueue::remove_own_gates_before(const CollectiveWork& work) {
  const Lock lock(*this);
  const auto position = std::ranges::find(entries_, &work, &WorkPtr::get);
  bool removed = false;
  for (CallbackScope* scope = current_scope(); scope && position != entries_.end();
       scope = scope->outer()) {
    if (!scope->has_gate_in(*this)) continue;
    const bool is_behind = std::find(scope->gate(), entries_.end(), *position) != entries_.end();
    if (!is_behind) continue;
    scope->remove_gate();
    removed = true;
  }
  return removed;
}

/// Whether a gate of another thread's callback keeps the work from starting.
bool OperationQueue::is_blocked_by_callback(const CollectiveWork& work) {
  const Lock lock(*this);
  return !entries_.empty() && !entries_.front() &&
         std::ranges::find(entries_, &work, &WorkPtr::get) != entries_.end();
}

// --- states ---

bool OperationQueue::is_idle() {
  const Lock lock(*this);
  // Acquire: pairs with on_completed().
  return unfinished_.load(std::memory_order_acquire) == 0 && state() != State::running;
}

void OperationQueue::require_open() const {
  if (closed_) throw Error(Errc::aborted, formatted("group {} is closed", group_));
}

void OperationQueue::submit_pool_task() {
  if (std::exchange(pool_task_pending_, true)) return;
  thread_pool_.submit([self = shared_from_this()] { self->run_on_pool(); });
}

bool OperationQueue::try_take_fast_path() {
  State expected = State::idle;
  // Acquire: pairs with the release in release_synchronous() and in ~Lock().
  return state_.compare_exchange_strong(expected, State::fast_path, std::memory_order_acquire,
                                        std::memory_order_relaxed);
}

/// After try_take_fast_path() or try_take_if_empty().
void OperationQueue::release_synchronous() {
  State expected = State::fast_path;
  if (!state_.compare_exchange_strong(expected, State::idle, std::memory_order_release,
                                      std::memory_order_relaxed))
    release_to(State::ready);  // a locker has set `running`, or try_take_if_empty() has
}

bool OperationQueue::try_take_if_empty() {
  const Lock lock(*this);
  require_open();
  if (state() == State::running || entries_.begin() != insert_position()) return false;
  set_state(State::running);
  return true;
}

/// Null if no entry can start, or if it might run beyond `latest`.
OperationQueue::WorkPtr OperationQueue::try_take_next(Deadline latest) {
  const Lock lock(*this);
  if (state() == State::running) return nullptr;
  set_state(State::ready);
  if (posted_count_ == 0 && !next_can_start()) return nullptr;
  const WorkPtr& first = posted_count_ != 0 ? posted_[0] : entries_.front();
  if (may_outlast(*first, latest)) return nullptr;
  set_state(State::running);
  if (posted_count_ != 0) return pop_posted();
  WorkPtr work = std::move(entries_.front());
  entries_.pop_front();
  return work;
}

/// `next` is ready, or rechecking if the calling thread will look at the queue again.
void OperationQueue::release_to(State next) {
  const Lock lock(*this);
  set_state(next);
  // A pool thread that came while the queue was running has gone.
  if (next == State::ready && needs_pool()) submit_pool_task();
}

void OperationQueue::stop_rechecking() {
  const Lock lock(*this);
  if (state() == State::running) return;
  set_state(State::ready);
  if (needs_pool()) submit_pool_task();
}

// --- running ---

OperationQueue::Outcome OperationQueue::run_catching(const CollectiveWork& work) {
  try {
    const RunningMark mark(this);
    work.run_on(executor_);
    return {};
  } catch (const InterruptedOperation& error) {
    return {std::make_exception_ptr(static_cast<const Error&>(error)), error.interrupt()};
  } catch (...) {
    return {std::current_exception(), nullptr};
  }
}

/// Completes a work after the queue has been released.
void OperationQueue::finish(const WorkPtr& work, const std::exception_ptr& error) {
  // If this thread is in a callback that waits, other callbacks must not run inside it: one that
  // waits for a later entry would be blocked by this callback's gate.
  if (CallbackScope::innermost() != nullptr)
    return thread_pool_.submit([work, error] { work->complete(error); });
  work->complete(error);
}

/// Runs an entry that try_take_next() returned, and leaves the queue in `rechecking`. Returns the
/// interrupt that ended it, if one did.
std::exception_ptr OperationQueue::run_entry(const WorkPtr& work) {
  const auto [error, interrupt] = run_catching(*work);
  release_to(State::rechecking);
  if (CallbackScope::innermost() != nullptr) {
    finish(work, error);
    return interrupt;
  }
  // Callbacks may take long, or wait for entries of this queue: another thread must run them.
  work->complete(error, [this](const std::function<void()>& callbacks) {
    stop_rechecking();
    callbacks();
  });
  return interrupt;
}

bool OperationQueue::withdraw(const Work& work, const Error& reason) {
  WorkPtr withdrawn;
  {
    const Lock lock(*this);
    const auto found = std::ranges::find(entries_, &work, &WorkPtr::get);
    if (found == entries_.end()) return false;
    withdrawn = std::move(*found);
    entries_.erase(found);
  }
  withdrawn->complete(std::make_exception_ptr(reason));
  return true;
}

void OperationQueue::run_on_pool() {
  {
    const Lock lock(*this);
    pool_task_pending_ = false;
  }
  while (const WorkPtr work = try_take_next(Deadline::max())) run_entry(work);
}

/// Runs entries until the work is done, then sleeps. Called by a thread in wait().
void OperationQueue::run_queue_until_done(CollectiveWork& work, Deadline deadline) {
  require_other_thread("wait()");
  // try_take_next() compares deadlines: a thread cannot stop an operation before it has ended.
  while (!work.done()) {
    if (const WorkPtr next = try_take_next(deadline)) {
      if (const std::exception_ptr interrupt = run_entry(next)) {
        stop_rechecking();
        std::rethrow_exception(interrupt);
      }
    } else if (!remove_own_gates_before(work)) {
      break;
    }
  }
  stop_rechecking();
  if (work.is_posted_ && !work.done()) complete_on_pool(work);
  // A running operation ends by its own timeout; a callback may never return.
  do {
    work.sleep_until_done(std::min(deadline, deadline_after(work.timeout())), check_interrupt_);
    if (!work.done() && Clock::now() < deadline && is_blocked_by_callback(work))
      throw Error(
          Errc::timeout,
          formatted("{} timed out after {}: it has not started, because a callback of an earlier "
                    "operation has not returned",
                    work.description(), text_of(work.timeout())));
  } while (!work.done() && Clock::now() < deadline);
}

OperationQueue::WorkPtr OperationQueue::last_work() {
  const Lock lock(*this);
  const auto last = std::find_if(entries_.rbegin(), entries_.rend(),
                                 [](const WorkPtr& work) { return work != nullptr; });
  if (last != entries_.rend()) return *last;
  return state() != State::running && posted_count_ != 0 ? posted_[posted_count_ - 1] : nullptr;
}

void OperationQueue::close() noexcept {
  {
    const Lock lock(*this);
    closed_ = true;
  }
  while (!is_idle()) {
    try {
      if (const WorkPtr last = last_work())
        run_queue_until_done(*last, Deadline::max());
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (...) {
      // An interrupt, or a callback that has not returned: the operations keep their errors.
    }
  }
}

}  // namespace tccl
