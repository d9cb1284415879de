#include "communicator/lane.h"

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

void CollectiveWork::help_until_done(Deadline deadline) { lane_->help(*this, deadline); }

void Lane::run(const Operation& operation, const Communicator::CallOptions& options) {
  if (!try_take_idle()) return start(operation, options)->wait();
  struct Release {
    Lane& lane;
    ~Release() { lane.release(); }
  } release{*this};
  execute_(operation, options.timeout);
}

std::shared_ptr<CollectiveWork> Lane::start(const Operation& operation,
                                            Communicator::CallOptions options) {
  auto work = std::make_shared<CollectiveWork>(shared_from_this(), operation, std::move(options));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(work);
  }
  // Always, even if the caller will wait at once: it may not, and the peers need this rank.
  drivers_.submit([self = shared_from_this()] { self->drive(); });
  return work;
}

bool Lane::try_take_idle() {
  const std::lock_guard lock(mutex_);
  if (taken_ || !queue_.empty()) return false;
  return taken_ = true;
}

Lane::WorkPtr Lane::try_take_next() {
  const std::lock_guard lock(mutex_);
  if (taken_ || queue_.empty()) return nullptr;
  taken_ = true;
  WorkPtr work = std::move(queue_.front());
  queue_.pop_front();
  return work;
}

void Lane::release() {
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    taken_ = false;
    more = !queue_.empty();
  }
  // A driver that came while the lane was taken has gone away again.
  if (more) drivers_.submit([self = shared_from_this()] { self->drive(); });
}

void Lane::execute_and_release(const WorkPtr& work) {
  std::exception_ptr error;
  try {
    execute_(work->operation(), work->timeout());
  } catch (...) {
    error = std::current_exception();
  }
  release();
  work->complete(error);
}

void Lane::drive() {
  while (const WorkPtr work = try_take_next()) execute_and_release(work);
}

void Lane::help(CollectiveWork& work, Deadline deadline) {
  // An operation that is run here cannot be left before its own deadline.
  const bool patient = deadline == Deadline::max() || deadline >= deadline_after(work.timeout());
  while (patient && !work.done()) {
    const WorkPtr next = try_take_next();
    if (!next) break;
    execute_and_release(next);
  }
  work.sleep_until_done(deadline, poll_interrupt_);
}

void Lane::drain() noexcept {
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
