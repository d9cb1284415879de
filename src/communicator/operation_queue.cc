#include "communicator/operation_queue.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {

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

CollectiveWork::CollectiveWork(std::shared_ptr<OperationQueue> queue, OperationSequence sequence,
                               Communicator::CallOptions options)
    : WorkState(std::move(options)), queue_(std::move(queue)), sequence_(std::move(sequence)) {}

void CollectiveWork::execute(Executor& executor) const {
  sequence_ ? executor.execute(*sequence_, timeout()) : executor.execute(operation_, timeout());
}

class OperationQueue::Lock {
 public:
  explicit Lock(OperationQueue& queue) : queue_(queue), lock_(queue.mutex_) {
    // Acquire: what a quick operation did before; it is taken from now on.
    if (queue_.use_.exchange(Use::by_mutex, std::memory_order_acq_rel) == Use::quick)
      queue_.taken_ = true;
  }
  ~Lock() {
    if (!queue_.taken_ && !queue_.closed_ && queue_.entries_.empty())
      queue_.use_.store(Use::idle, std::memory_order_release);  // pairs with try_take_quickly()
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  OperationQueue& queue_;
  std::lock_guard<std::mutex> lock_;
};

/// While it exists, the thread runs a callback whose gate stands in the queue of `queue`. Scopes of
/// one thread are nested: a callback may wait, and thereby run other operations.
class OperationQueue::CallbackScope {
 public:
  CallbackScope(OperationQueue& queue, Queue::iterator gate)
      : queue_(queue), gate_(gate), outer_(innermost_scope) {
    innermost_scope = this;
  }
  ~CallbackScope() {
    innermost_scope = outer_;
    const Lock lock(queue_);
    lift();
    if (!queue_.taken_ && queue_.next_is_ready()) queue_.schedule_locked();
  }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static CallbackScope* innermost() { return innermost_scope; }
  [[nodiscard]] CallbackScope* outer() const { return outer_; }
  [[nodiscard]] bool stands_in(const OperationQueue& queue) const {
    return &queue_ == &queue && !lifted_;
  }
  [[nodiscard]] Queue::iterator gate() const { return gate_; }
  /// Under the queue's lock.
  void lift() {
    if (!std::exchange(lifted_, true)) queue_.entries_.erase(gate_);
  }

 private:
  static thread_local CallbackScope* innermost_scope;
  OperationQueue& queue_;
  Queue::iterator gate_;
  bool lifted_ = false;
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

void CollectiveWork::help_until_done(Deadline deadline) { queue_->help(*this, deadline); }

std::string CollectiveWork::description() const {
  return formatted("{} of group {}", sequence_ ? sequence_->name : name_of(operation_.op),
                   queue_->group());
}

namespace {

std::uint32_t operations_in(const Operation& /*operation*/) { return 1; }
std::uint32_t operations_in(const OperationSequence& sequence) { return sequence.operations; }

/// The queue whose operation the thread is running, for what interrupts it.
thread_local const OperationQueue* running_queue = nullptr;

class RunningMark {
 public:
  explicit RunningMark(const OperationQueue* queue) : outer_(std::exchange(running_queue, queue)) {}
  ~RunningMark() { running_queue = outer_; }
  RunningMark(const RunningMark&) = delete;
  RunningMark& operator=(const RunningMark&) = delete;

 private:
  const OperationQueue* outer_;
};

}  // namespace

bool OperationQueue::is_run_by_this_thread() const noexcept { return running_queue == this; }

template <class Entry>
bool OperationQueue::try_run(const Entry& entry, Milliseconds timeout) {
  if (!try_take_quickly() && !try_take_idle()) return false;
  issued_.fetch_add(operations_in(entry), std::memory_order_relaxed);
  struct Release {
    OperationQueue& queue;
    ~Release() { queue.release_inline(); }
  } release{*this};
  const RunningMark mark(this);
  executor_.execute(entry, timeout);
  return true;
}

template <class Entry>
std::shared_ptr<CollectiveWork> OperationQueue::start(const Entry& entry,
                                                      Communicator::CallOptions options) {
  auto work = std::make_shared<CollectiveWork>(shared_from_this(), entry, std::move(options));
  const Lock lock(*this);
  require_open();
  entries_.insert(insert_position(), work);
  issued_.fetch_add(operations_in(entry), std::memory_order_relaxed);
  // Even if the caller will wait at once: it may not, and the peers need this rank. Whoever has
  // taken the queue looks at the queue, or calls a driver, when it is done.
  if (!taken_ && !watched_ && next_is_ready()) schedule_locked();
  return work;
}

template bool OperationQueue::try_run(const Operation&, Milliseconds);
template bool OperationQueue::try_run(const OperationSequence&, Milliseconds);
template std::shared_ptr<CollectiveWork> OperationQueue::start(const Operation&,
                                                               Communicator::CallOptions);
template std::shared_ptr<CollectiveWork> OperationQueue::start(const OperationSequence&,
                                                               Communicator::CallOptions);

OperationQueue::Queue::iterator OperationQueue::add_gate() {
  const Lock lock(*this);
  return entries_.insert(insert_position(), nullptr);
}

/// Where what the calling thread issues goes: at the end, or before its callback's gate.
OperationQueue::Queue::iterator OperationQueue::insert_position() {
  const CallbackScope* scope = current_scope();
  return scope ? scope->gate() : entries_.end();
}

/// Of the calling thread, if it runs a callback that has a place in this queue's order.
OperationQueue::CallbackScope* OperationQueue::current_scope() const {
  CallbackScope* scope = CallbackScope::innermost();
  while (scope && !scope->stands_in(*this)) scope = scope->outer();
  return scope;
}

/// A callback that waits for what was issued after its place cannot keep that back. Returns whether
/// it did.
bool OperationQueue::release_gates_before(const CollectiveWork& work) {
  const Lock lock(*this);
  const auto place = std::ranges::find(entries_, &work, &WorkPtr::get);
  bool lifted = false;
  for (CallbackScope* scope = current_scope(); scope && place != entries_.end();
       scope = scope->outer()) {
    if (!scope->stands_in(*this)) continue;
    if (std::find(scope->gate(), entries_.end(), *place) == entries_.end()) continue;  // before it
    scope->lift();
    lifted = true;
  }
  return lifted;
}

/// Whether a callback on another thread keeps it from beginning.
bool OperationQueue::is_blocked_by_callback(const CollectiveWork& work) {
  const Lock lock(*this);
  return !entries_.empty() && !entries_.front() &&
         std::ranges::find(entries_, &work, &WorkPtr::get) != entries_.end();
}

bool OperationQueue::has_work() const {
  return std::ranges::any_of(entries_, [](const WorkPtr& work) { return work != nullptr; });
}

bool OperationQueue::is_idle() {
  const Lock lock(*this);
  return !taken_ && !has_work();
}

void OperationQueue::require_open() const {
  if (closed_) throw Error(Errc::aborted, formatted("group {} is closed", group_));
}

void OperationQueue::schedule_locked() {
  if (std::exchange(scheduled_, true)) return;
  thread_pool_.submit([self = shared_from_this()] { self->run_queue(); });
}

void OperationQueue::schedule_if_needed() {
  const Lock lock(*this);
  watched_ = false;
  if (!taken_ && next_is_ready()) schedule_locked();
}

bool OperationQueue::try_take_quickly() {
  Use expected = Use::idle;
  return use_.compare_exchange_strong(expected, Use::quick,
                                      std::memory_order_acquire);  // pairs with release_inline()
}

/// After try_take_quickly() or try_take_idle().
void OperationQueue::release_inline() {
  Use expected = Use::quick;
  if (!use_.compare_exchange_strong(expected, Use::idle, std::memory_order_release))
    release(/*stays=*/false);  // somebody has come meanwhile
}

bool OperationQueue::try_take_idle() {
  const Lock lock(*this);
  require_open();
  if (taken_ || entries_.begin() != insert_position()) return false;
  return taken_ = true;
}

/// Null also if the operation could last beyond `latest`.
OperationQueue::WorkPtr OperationQueue::try_take_next(Deadline latest) {
  const Lock lock(*this);
  watched_ = false;
  if (taken_ || !next_is_ready()) return nullptr;
  if (latest != Deadline::max() && latest < deadline_after(entries_.front()->timeout()))
    return nullptr;
  taken_ = true;
  WorkPtr work = std::move(entries_.front());
  entries_.pop_front();
  return work;
}

/// A thread that `stays` looks for the next operation itself.
void OperationQueue::release(bool stays) {
  const Lock lock(*this);
  taken_ = false;
  watched_ = stays;
  // A driver that came while the queue was taken has gone away again.
  if (!stays && next_is_ready()) schedule_locked();
}

/// For threads that look for the next operation themselves afterwards.
void OperationQueue::execute_and_release(const WorkPtr& work) {
  std::exception_ptr error;
  try {
    const RunningMark mark(this);
    work->execute(executor_);
  } catch (...) {
    error = std::current_exception();
  }
  if (CallbackScope::innermost() != nullptr) {
    // In the middle of a callback that waits. Others must not run inside it: one that comes later
    // in the order would have to lift its gate.
    thread_pool_.submit([work, error] { work->complete(error); });
    return release(/*stays=*/true);
  }
  release(/*stays=*/true);
  // Callbacks may take long, or wait for what is queued here: someone else must go on meanwhile.
  work->complete(error, [this](const std::function<void()>& callbacks) {
    schedule_if_needed();
    callbacks();
  });
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

void OperationQueue::run_queue() {
  {
    const Lock lock(*this);
    scheduled_ = false;
  }
  while (const WorkPtr work = try_take_next(Deadline::max())) execute_and_release(work);
}

void OperationQueue::help(CollectiveWork& work, Deadline deadline) {
  // An operation that is run here cannot be left before its own deadline.
  while (!work.done()) {
    if (const WorkPtr next = try_take_next(deadline)) {
      execute_and_release(next);
    } else if (!release_gates_before(work)) {
      break;
    }
  }
  schedule_if_needed();
  // Whoever has taken the queue ends in time; a callback may not.
  do {
    work.sleep_until_done(std::min(deadline, deadline_after(work.timeout())), poll_interrupt_);
    if (!work.done() && Clock::now() < deadline && is_blocked_by_callback(work))
      throw Error(
          Errc::timeout,
          formatted("{} has not begun within {:.1f} s: a callback of an earlier operation "
                    "has not returned",
                    work.description(), std::chrono::duration<double>(work.timeout()).count()));
  } while (!work.done() && Clock::now() < deadline);
}

void OperationQueue::close() noexcept {
  {
    const Lock lock(*this);
    closed_ = true;
  }
  for (;;) {
    WorkPtr last;
    {
      const Lock lock(*this);
      if (!has_work() && !taken_) return;
      for (const WorkPtr& work : entries_)
        if (work) last = work;
    }
    try {
      last ? help(*last, Deadline::max())
           : std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (...) {
      // An interrupt, or a callback that has not returned yet: the operations keep their errors.
    }
  }
}

}  // namespace tccl
