// The posted operations of OperationQueue. See docs/threads.md, "Posted operations".
#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "communicator/operation_queue_scopes.h"
#include "communicator/progress_thread.h"

namespace tccl {
namespace {

/// A posted operation that nobody has completed within this time goes to the thread pool.
constexpr std::chrono::milliseconds kAwaitedWithin{1};

}  // namespace

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

/// Takes the fast path and completes the first posted operation, then calls `complete` without the
/// fast path. Returns false if another thread runs the queue, or if may_take() does.
template <class MayTake, class Complete>
bool OperationQueue::complete_first_posted(const MayTake& may_take, const Complete& complete) {
  WorkPtr first;
  Outcome outcome;
  {
    const FastPath fast_path(*this);
    if (!fast_path.is_taken() || !may_take()) return false;
    first = pop_posted();
    outcome = run_catching(*first);
  }
  complete(first, outcome);
  return true;
}

/// Returns false if another thread runs the queue, or if the operation might run beyond `deadline`.
bool OperationQueue::complete_posted_until_done(const CollectiveWork& work, Deadline deadline) {
  const auto may_take = [&] { return posted_count_ != 0 && !may_outlast(*posted_[0], deadline); };
  const auto complete = [this](const WorkPtr& first, const Outcome& outcome) {
    finish(first, outcome.error);
    if (outcome.interrupt) std::rethrow_exception(outcome.interrupt);
  };
  while (!work.done())
    if (!complete_first_posted(may_take, complete)) return false;
  return true;
}

/// Completes posted operations without waiting for another rank. Callbacks run on the pool: the
/// caller of start() or test() expects neither to wait nor to run them.
void OperationQueue::complete_arrived() {
  const auto may_take = [this] { return executor_.posted_has_arrived(); };
  const auto complete = [this](const WorkPtr& first, const Outcome& outcome) {
    complete_with_callbacks_on_pool(*first, outcome.error);
  };
  while (complete_first_posted(may_take, complete)) {
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

}  // namespace tccl
