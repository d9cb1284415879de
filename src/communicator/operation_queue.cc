#include "communicator/operation_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/interrupt.h"
#include "communicator/operation_queue_scopes.h"
#include "tccl/error.h"

namespace tccl {

thread_local OperationQueue::CallbackScope* OperationQueue::CallbackScope::innermost_scope =
    nullptr;

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

bool OperationQueue::needs_pool() const {
  return next_can_start() || std::any_of(posted_.begin(), posted_.begin() + posted_count_,
                                         [](const WorkPtr& work) { return work->is_for_pool_; });
}

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
