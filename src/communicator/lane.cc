#include "communicator/lane.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {

CollectiveWork::CollectiveWork(std::shared_ptr<Lane> lane, const Operation& operation,
                               Communicator::CallOptions options)
    : WorkState(std::move(options)),
      lane_(std::move(lane)),
      in_blocks_(operation.in_blocks.begin(), operation.in_blocks.end()),
      out_blocks_(operation.out_blocks.begin(), operation.out_blocks.end()),
      operation_(operation) {
  operation_.in_blocks = in_blocks_;
  operation_.out_blocks = out_blocks_;
}

CollectiveWork::CollectiveWork(std::shared_ptr<Lane> lane, Program program,
                               Communicator::CallOptions options)
    : WorkState(std::move(options)), lane_(std::move(lane)), program_(std::move(program)) {}

void CollectiveWork::execute(LaneExecutor& executor) const {
  program_ ? executor.execute(*program_, timeout()) : executor.execute(operation_, timeout());
}

class Lane::Lock {
 public:
  explicit Lock(Lane& lane) : lane_(lane), lock_(lane.mutex_) {
    // Acquire: what a quick operation did before; it is taken from now on.
    if (lane_.use_.exchange(Use::by_mutex, std::memory_order_acq_rel) == Use::quick)
      lane_.taken_ = true;
  }
  ~Lock() {
    if (!lane_.taken_ && !lane_.closed_ && lane_.queue_.empty())
      lane_.use_.store(Use::idle, std::memory_order_release);  // pairs with try_take_quickly()
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Lane& lane_;
  std::lock_guard<std::mutex> lock_;
};

/// While it exists, the thread runs a callback whose gate stands in the queue of `lane`. Scopes of
/// one thread are nested: a callback may wait, and thereby run other operations.
class Lane::CallbackScope {
 public:
  CallbackScope(Lane& lane, Queue::iterator gate)
      : lane_(lane), gate_(gate), outer_(innermost_scope) {
    innermost_scope = this;
  }
  ~CallbackScope() {
    innermost_scope = outer_;
    const Lock lock(lane_);
    lift();
    if (!lane_.taken_ && lane_.next_is_ready()) lane_.call_driver_locked();
  }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

  static CallbackScope* innermost() { return innermost_scope; }
  [[nodiscard]] CallbackScope* outer() const { return outer_; }
  [[nodiscard]] bool stands_in(const Lane& lane) const { return &lane_ == &lane && !lifted_; }
  [[nodiscard]] Queue::iterator gate() const { return gate_; }
  /// Under the lane's lock.
  void lift() {
    if (!std::exchange(lifted_, true)) lane_.queue_.erase(gate_);
  }

 private:
  static thread_local CallbackScope* innermost_scope;
  Lane& lane_;
  Queue::iterator gate_;
  bool lifted_ = false;
  CallbackScope* outer_;
};

thread_local Lane::CallbackScope* Lane::CallbackScope::innermost_scope = nullptr;

void CollectiveWork::on_done_in_order(std::function<void()> callback) {
  on_done([lane = lane_, gate = lane_->add_gate(), callback = std::move(callback)] {
    const Lane::CallbackScope scope(*lane, gate);
    callback();
  });
}

void CollectiveWork::help_until_done(Deadline deadline) { lane_->help(*this, deadline); }

std::string CollectiveWork::description() const {
  return formatted("{} of group {}", program_ ? program_->name : name_of(operation_.op),
                   lane_->group());
}

namespace {

std::uint32_t operations_in(const Operation& /*operation*/) { return 1; }
std::uint32_t operations_in(const Program& program) { return program.operations; }

/// The lane whose operation the thread is running, for what interrupts it.
thread_local const Lane* running_lane = nullptr;

class RunningMark {
 public:
  explicit RunningMark(const Lane* lane) : outer_(std::exchange(running_lane, lane)) {}
  ~RunningMark() { running_lane = outer_; }
  RunningMark(const RunningMark&) = delete;
  RunningMark& operator=(const RunningMark&) = delete;

 private:
  const Lane* outer_;
};

}  // namespace

bool Lane::is_run_by_this_thread() const noexcept { return running_lane == this; }

template <class Entry>
bool Lane::try_run(const Entry& entry, Milliseconds timeout) {
  if (!try_take_quickly() && !try_take_idle()) return false;
  issued_.fetch_add(operations_in(entry), std::memory_order_relaxed);
  struct Release {
    Lane& lane;
    ~Release() { lane.release_inline(); }
  } release{*this};
  const RunningMark mark(this);
  executor_.execute(entry, timeout);
  return true;
}

template <class Entry>
std::shared_ptr<CollectiveWork> Lane::start(const Entry& entry, Communicator::CallOptions options) {
  auto work = std::make_shared<CollectiveWork>(shared_from_this(), entry, std::move(options));
  const Lock lock(*this);
  require_open();
  queue_.insert(own_place(), work);
  issued_.fetch_add(operations_in(entry), std::memory_order_relaxed);
  // Even if the caller will wait at once: it may not, and the peers need this rank. Whoever has
  // taken the lane looks at the queue, or calls a driver, when it is done.
  if (!taken_ && !watched_ && next_is_ready()) call_driver_locked();
  return work;
}

template bool Lane::try_run(const Operation&, Milliseconds);
template bool Lane::try_run(const Program&, Milliseconds);
template std::shared_ptr<CollectiveWork> Lane::start(const Operation&, Communicator::CallOptions);
template std::shared_ptr<CollectiveWork> Lane::start(const Program&, Communicator::CallOptions);

Lane::Queue::iterator Lane::add_gate() {
  const Lock lock(*this);
  return queue_.insert(own_place(), nullptr);
}

/// Where what the calling thread issues goes: at the end, or before its callback's gate.
Lane::Queue::iterator Lane::own_place() {
  const CallbackScope* scope = own_scope();
  return scope ? scope->gate() : queue_.end();
}

/// Of the calling thread, if it runs a callback that has a place in this lane's order.
Lane::CallbackScope* Lane::own_scope() const {
  CallbackScope* scope = CallbackScope::innermost();
  while (scope && !scope->stands_in(*this)) scope = scope->outer();
  return scope;
}

/// A callback that waits for what was issued after its place cannot keep that back. Returns whether
/// it did.
bool Lane::lift_own_gates_before(const CollectiveWork& work) {
  const Lock lock(*this);
  const auto place = std::ranges::find(queue_, &work, &WorkPtr::get);
  bool lifted = false;
  for (CallbackScope* scope = own_scope(); scope && place != queue_.end(); scope = scope->outer()) {
    if (!scope->stands_in(*this)) continue;
    if (std::find(scope->gate(), queue_.end(), *place) == queue_.end()) continue;  // before it
    scope->lift();
    lifted = true;
  }
  return lifted;
}

/// Whether a callback on another thread keeps it from beginning.
bool Lane::is_kept_back(const CollectiveWork& work) {
  const Lock lock(*this);
  return !queue_.empty() && !queue_.front() &&
         std::ranges::find(queue_, &work, &WorkPtr::get) != queue_.end();
}

bool Lane::has_work() const {
  return std::ranges::any_of(queue_, [](const WorkPtr& work) { return work != nullptr; });
}

bool Lane::is_idle() {
  const Lock lock(*this);
  return !taken_ && !has_work();
}

void Lane::require_open() const {
  if (closed_) throw Error(Errc::aborted, formatted("group {} is closed", group_));
}

void Lane::call_driver_locked() {
  if (std::exchange(driver_called_, true)) return;
  drivers_.submit([self = shared_from_this()] { self->drive(); });
}

void Lane::call_driver_if_needed() {
  const Lock lock(*this);
  watched_ = false;
  if (!taken_ && next_is_ready()) call_driver_locked();
}

bool Lane::try_take_quickly() {
  Use expected = Use::idle;
  return use_.compare_exchange_strong(expected, Use::quick,
                                      std::memory_order_acquire);  // pairs with release_inline()
}

/// After try_take_quickly() or try_take_idle().
void Lane::release_inline() {
  Use expected = Use::quick;
  if (!use_.compare_exchange_strong(expected, Use::idle, std::memory_order_release))
    release(/*stays=*/false);  // somebody has come meanwhile
}

bool Lane::try_take_idle() {
  const Lock lock(*this);
  require_open();
  if (taken_ || queue_.begin() != own_place()) return false;
  return taken_ = true;
}

/// Null also if the operation could last beyond `latest`.
Lane::WorkPtr Lane::try_take_next(Deadline latest) {
  const Lock lock(*this);
  watched_ = false;
  if (taken_ || !next_is_ready()) return nullptr;
  if (latest != Deadline::max() && latest < deadline_after(queue_.front()->timeout()))
    return nullptr;
  taken_ = true;
  WorkPtr work = std::move(queue_.front());
  queue_.pop_front();
  return work;
}

/// A thread that `stays` looks for the next operation itself.
void Lane::release(bool stays) {
  const Lock lock(*this);
  taken_ = false;
  watched_ = stays;
  // A driver that came while the lane was taken has gone away again.
  if (!stays && next_is_ready()) call_driver_locked();
}

/// For threads that look for the next operation themselves afterwards.
void Lane::execute_and_release(const WorkPtr& work) {
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
    drivers_.submit([work, error] { work->complete(error); });
    return release(/*stays=*/true);
  }
  release(/*stays=*/true);
  // Callbacks may take long, or wait for what is queued here: someone else must go on meanwhile.
  work->complete(error, [this](const std::function<void()>& callbacks) {
    call_driver_if_needed();
    callbacks();
  });
}

bool Lane::withdraw(const Work& work, const Error& reason) {
  WorkPtr withdrawn;
  {
    const Lock lock(*this);
    const auto found = std::ranges::find(queue_, &work, &WorkPtr::get);
    if (found == queue_.end()) return false;
    withdrawn = std::move(*found);
    queue_.erase(found);
  }
  withdrawn->complete(std::make_exception_ptr(reason));
  return true;
}

void Lane::drive() {
  {
    const Lock lock(*this);
    driver_called_ = false;
  }
  while (const WorkPtr work = try_take_next(Deadline::max())) execute_and_release(work);
}

void Lane::help(CollectiveWork& work, Deadline deadline) {
  // An operation that is run here cannot be left before its own deadline.
  while (!work.done()) {
    if (const WorkPtr next = try_take_next(deadline)) {
      execute_and_release(next);
    } else if (!lift_own_gates_before(work)) {
      break;
    }
  }
  call_driver_if_needed();
  // Whoever has taken the lane ends in time; a callback may not.
  do {
    work.sleep_until_done(std::min(deadline, deadline_after(work.timeout())), poll_interrupt_);
    if (!work.done() && Clock::now() < deadline && is_kept_back(work))
      throw Error(
          Errc::timeout,
          formatted("{} has not begun within {:.1f} s: a callback of an earlier operation "
                    "has not returned",
                    work.description(), std::chrono::duration<double>(work.timeout()).count()));
  } while (!work.done() && Clock::now() < deadline);
}

void Lane::close() noexcept {
  {
    const Lock lock(*this);
    closed_ = true;
  }
  for (;;) {
    WorkPtr last;
    {
      const Lock lock(*this);
      if (!has_work() && !taken_) return;
      for (const WorkPtr& work : queue_)
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
