#include "communicator/p2p.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <thread>

#include "base/format.h"
#include "communicator/progress_thread.h"
#include "tccl/error.h"

namespace tccl {
namespace {

Error out_of_memory_error(const Membership& membership) {
  return {Errc::system,
          formatted("rank {} ran out of memory in a point-to-point operation of group {}",
                    membership.rank(), membership.name()),
          {membership.rank()}};
}

}  // namespace

P2p::P2p(std::shared_ptr<shm::LocalGroup> group, std::shared_ptr<Membership> membership,
         std::unique_ptr<ofi::OfiP2p> ofi_p2p, std::size_t eager_bytes, ProgressThread& progress,
         WorkState::Submit run_elsewhere, std::function<void()> check_interrupt,
         BackoffPolicy backoff)
    : group_(std::move(group)),
      membership_(std::move(membership)),
      ofi_p2p_(std::move(ofi_p2p)),
      progress_(progress),
      run_elsewhere_(std::move(run_elsewhere)),
      check_interrupt_(std::move(check_interrupt)),
      backoff_(backoff),
      out_of_memory_(out_of_memory_error(*membership_)),
      protocol_(*group_, *membership_, ofi_p2p_.get(), eager_bytes),
      failures_(*membership_, protocol_) {}

std::shared_ptr<P2pWork> P2p::start(const Operation& operation, Communicator::CallOptions options) {
  std::vector<P2pWorkPtr> finished;
  P2pWorkPtr work;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) throw Error(Errc::aborted, formatted("group {} is closed", group_name()));
    work = std::make_shared<P2pWork>(shared_from_this(), operation, std::move(options),
                                     next_sequence_++);
    protocol_.start(work);
    advance_locked();
    finished = take_finished_locked();
  }
  complete(finished);
  if (!work->done() || needs_progress()) progress_.notify();
  return work;
}

bool P2p::cancel(P2pWork& work, const Error& reason) {
  std::vector<P2pWorkPtr> finished;
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    if (work.is_cancelled) return true;
    cancelled = protocol_.cancel(work, reason);
    finished = take_finished_locked();
  }
  complete(finished);
  return cancelled;
}

// --- progress ---

bool P2p::advance(bool check_failures) {
  std::vector<P2pWorkPtr> finished;
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    moved = advance_locked();
    if (check_failures) {
      check_failures_locked();  // after the data: a peer may send its last message and depart
      last_check_.store(Clock::now(), std::memory_order_relaxed);
    }
    finished = take_finished_locked();
  }
  complete(finished);
  return moved || !finished.empty();
}

/// Does not throw: an error here (such as no memory for a ring) fails the group.
bool P2p::advance_locked() {
  try {
    return protocol_.advance();
  } catch (const Error& error) {
    protocol_.fail_all(std::make_exception_ptr(membership_->fail(error)));
  } catch (const std::bad_alloc&) {
    protocol_.fail_all(std::make_exception_ptr(membership_->fail(out_of_memory_)));
  } catch (const std::exception& error) {
    const Error reason(Errc::system, formatted("group {}: {}", group_name(), error.what()));
    protocol_.fail_all(std::make_exception_ptr(membership_->fail(reason)));
  }
  return false;
}

void P2p::check_failures_locked() {
  if (membership_->failed())
    return protocol_.fail_all(std::make_exception_ptr(membership_->failure()));
  const auto now = Clock::now();
  failures_.update_heartbeats(now);
  const auto& outstanding = protocol_.outstanding();
  for (const P2pWorkPtr& work : std::vector<P2pWorkPtr>(outstanding.begin(), outstanding.end())) {
    const std::exception_ptr error = failures_.check(*work, now);
    if (!error) continue;
    advance_locked();  // its last message may have arrived between the data and the failure check
    if (outstanding.contains(work)) return protocol_.fail_all(error);
  }
}

std::vector<P2pWorkPtr> P2p::take_finished_locked() {
  std::vector<P2pWorkPtr> finished = protocol_.take_finished();
  // Relaxed: close() has taken this mutex since, so it sees the increment.
  if (!finished.empty()) completing_.fetch_add(1, std::memory_order_relaxed);
  return finished;
}

// --- waiting ---

/// Exists while this thread is in wait_until(). Callbacks of the work that it waits for run on this
/// thread when it has stopped moving data: that saves a switch to another thread and back.
class P2p::Waiting {
 public:
  Waiting(P2p& engine, const P2pWork& work) : engine_(engine), work_(work), outer_(innermost_wait) {
    innermost_wait = this;
    engine_.waiters_.fetch_add(1, std::memory_order_relaxed);  // relaxed: only the end publishes
  }
  ~Waiting() {
    innermost_wait = outer_;
    engine_.last_wait_.store(Clock::now(), std::memory_order_relaxed);
    engine_.waiters_.fetch_sub(1, std::memory_order_release);  // pairs with has_waiters()
    if (callbacks_) callbacks_();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// How to run the callbacks of `work`, which the calling thread has completed.
  static WorkState::Submit submit_for(const P2pWork& work, const WorkState::Submit& elsewhere) {
    if (innermost_wait == nullptr || &innermost_wait->work_ != &work) return elsewhere;
    return [waiting = innermost_wait](std::function<void()> callbacks) {
      waiting->callbacks_ = std::move(callbacks);
    };
  }

 private:
  static thread_local Waiting* innermost_wait;
  P2p& engine_;
  const P2pWork& work_;
  Waiting* outer_;
  std::function<void()> callbacks_;
};

thread_local P2p::Waiting* P2p::Waiting::innermost_wait = nullptr;

void P2p::wait_for(P2pWork& work, Deadline deadline) {
  struct NotifyProgress {
    P2p& engine;
    ~NotifyProgress() {
      if (engine.needs_progress()) engine.progress_.notify();  // this thread stops moving data
    }
  } notify_progress{*this};
  auto next_interrupt_check = Clock::now() + kInterruptInterval;
  while (!work.done() && Clock::now() < deadline) {
    wait_until(work, std::min(deadline, next_interrupt_check));
    if (work.done() || Clock::now() < next_interrupt_check) continue;
    // Outside wait_until(): a signal handler may do anything, also close the group.
    next_interrupt_check = Clock::now() + kInterruptInterval;
    if (check_interrupt_) check_interrupt_();
  }
}

void P2p::wait_until(P2pWork& work, Deadline deadline) {
  const Waiting waiting(*this, work);
  const auto something_moves = [&] { return work.done() || advance(false) || work.done(); };
  const auto give_up = [&] {
    advance(true);
    return work.done() || Clock::now() >= deadline;
  };
  // While data moves it is too early to sleep: each turn begins with spinning.
  auto next_check = Clock::now() + kSleepInterval;
  while (!work.done() && Clock::now() < deadline) {
    if (!spin_then_yield(something_moves, backoff_)) sleep_for(work, something_moves, give_up);
    if (Clock::now() < next_check) continue;
    next_check = Clock::now() + kSleepInterval;
    give_up();
  }
}

/// A rank of this host notifies the doorbell; data of another host wakes the network's descriptor.
void P2p::sleep_for(const P2pWork& work, FunctionRef<bool()> something_moves,
                    FunctionRef<bool()> give_up) {
  const int peer = work.operation.peer();
  if (!ofi_p2p_ || (peer != kAnySource && membership_->is_local(peer))) {
    sleep_until(group_->mine().p2p_doorbell, something_moves, give_up);
    return;
  }
  const auto interval = peer == kAnySource ? std::chrono::milliseconds(1) : kSleepInterval;
  sleep_until(ofi::EndpointSleeper(ofi_p2p_->network().endpoint(), interval), something_moves,
              give_up);
}

// --- completion ---

void P2p::complete(const std::vector<P2pWorkPtr>& finished) {
  if (finished.empty()) return;
  for (const P2pWorkPtr& work : finished) {
    if (!work->pending_error || work->is_cancelled) continue;
    try {
      std::rethrow_exception(work->pending_error);
    } catch (const Error& error) {
      // It fails the group, so that the peer learns of it too.
      work->pending_error = std::make_exception_ptr(membership_->fail(error));
    }
  }
  for (const P2pWorkPtr& work : finished)
    work->complete(work->pending_error, Waiting::submit_for(*work, run_elsewhere_));
  doorbell_fence();
  group_->mine().p2p_doorbell.notify_if_sleeping();     // another thread may wait for one of them
  completing_.fetch_sub(1, std::memory_order_release);  // pairs with close()
}

bool P2p::has_outstanding_sends() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(protocol_.outstanding(),
                             [](const P2pWorkPtr& work) { return work->operation.op == Op::send; });
}

void P2p::close(Milliseconds flush_timeout) noexcept {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    protocol_.cancel_receives(std::make_exception_ptr(
        Error(Errc::aborted, formatted("group {} was closed", group_name()))));
  }
  advance(false);  // completes them
  while (has_outstanding()) {
    if (!advance(true)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  if (ofi_p2p_) ofi_p2p_->close(deadline_after(flush_timeout));
  // Waiting threads have nothing left to wait for, but may still access the doorbell.
  while (has_waiters() ||
         completing_.load(std::memory_order_acquire) != 0)  // pairs with complete()
    sched_yield();
}

}  // namespace tccl
