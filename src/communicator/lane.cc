#include "communicator/lane.h"

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

void CollectiveWork::help_until_done(Deadline deadline) { lane_->help(*this, deadline); }

std::string CollectiveWork::description() const {
  return formatted("{} of group {}", program_ ? program_->name : name_of(operation_.op),
                   lane_->group());
}

namespace {

std::uint32_t operations_in(const Operation& /*operation*/) { return 1; }
std::uint32_t operations_in(const Program& program) { return program.operations; }

}  // namespace

template <class Entry>
void Lane::run(const Entry& entry, const Communicator::CallOptions& options) {
  if (!try_take_idle(operations_in(entry))) return start(entry, options)->wait();
  struct Release {
    Lane& lane;
    ~Release() { lane.release(/*stays=*/false); }
  } release{*this};
  executor_.execute(entry, options.timeout);
}

template <class Entry>
std::shared_ptr<CollectiveWork> Lane::start(const Entry& entry, Communicator::CallOptions options) {
  auto work = std::make_shared<CollectiveWork>(shared_from_this(), entry, std::move(options));
  const std::lock_guard lock(mutex_);
  require_open();
  queue_.push_back(work);
  issued_.fetch_add(operations_in(entry), std::memory_order_relaxed);
  // Even if the caller will wait at once: it may not, and the peers need this rank. Whoever has
  // taken the lane looks at the queue, or calls a driver, when it is done.
  if (!taken_ && !watched_) call_driver_locked();
  return work;
}

template void Lane::run(const Operation&, const Communicator::CallOptions&);
template void Lane::run(const Program&, const Communicator::CallOptions&);
template std::shared_ptr<CollectiveWork> Lane::start(const Operation&, Communicator::CallOptions);
template std::shared_ptr<CollectiveWork> Lane::start(const Program&, Communicator::CallOptions);

bool Lane::is_idle() const {
  const std::lock_guard lock(mutex_);
  return !taken_ && queue_.empty();
}

void Lane::require_open() const {
  if (closed_) throw Error(Errc::aborted, formatted("group {} is closed", group_));
}

void Lane::call_driver_locked() {
  if (std::exchange(driver_called_, true)) return;
  drivers_.submit([self = shared_from_this()] { self->drive(); });
}

void Lane::call_driver_if_needed() {
  const std::lock_guard lock(mutex_);
  watched_ = false;
  if (!taken_ && !queue_.empty()) call_driver_locked();
}

bool Lane::try_take_idle(std::uint32_t operations) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (taken_ || !queue_.empty()) return false;
  issued_.fetch_add(operations, std::memory_order_relaxed);
  return taken_ = true;
}

/// Null also if the operation could last beyond `latest`.
Lane::WorkPtr Lane::try_take_next(Deadline latest) {
  const std::lock_guard lock(mutex_);
  watched_ = false;
  if (taken_ || queue_.empty()) return nullptr;
  if (latest != Deadline::max() && latest < deadline_after(queue_.front()->timeout()))
    return nullptr;
  taken_ = true;
  WorkPtr work = std::move(queue_.front());
  queue_.pop_front();
  return work;
}

/// A thread that `stays` looks for the next operation itself.
void Lane::release(bool stays) {
  const std::lock_guard lock(mutex_);
  taken_ = false;
  watched_ = stays;
  // A driver that came while the lane was taken has gone away again.
  if (!stays && !queue_.empty()) call_driver_locked();
}

/// For threads that look for the next operation themselves afterwards.
void Lane::execute_and_release(const WorkPtr& work) {
  std::exception_ptr error;
  try {
    work->execute(executor_);
  } catch (...) {
    error = std::current_exception();
  }
  release(/*stays=*/true);
  // Callbacks may take long, or wait for what is queued here: someone else must go on meanwhile.
  work->complete(error, [this](const std::function<void()>& callbacks) {
    call_driver_if_needed();
    callbacks();
  });
}

void Lane::drive() {
  {
    const std::lock_guard lock(mutex_);
    driver_called_ = false;
  }
  while (const WorkPtr work = try_take_next(Deadline::max())) execute_and_release(work);
}

void Lane::help(CollectiveWork& work, Deadline deadline) {
  // An operation that is run here cannot be left before its own deadline.
  while (!work.done()) {
    const WorkPtr next = try_take_next(deadline);
    if (!next) break;
    execute_and_release(next);
  }
  call_driver_if_needed();
  work.sleep_until_done(deadline, poll_interrupt_);
}

void Lane::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  for (;;) {
    WorkPtr last;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty() && !taken_) return;
      if (!queue_.empty()) last = queue_.back();
    }
    try {
      last ? help(*last, Deadline::max())
           : std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (...) {
      // Only an interrupt gets here; the operations themselves keep their errors.
    }
  }
}

}  // namespace tccl
