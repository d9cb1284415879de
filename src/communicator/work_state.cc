#include "communicator/work_state.h"

#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/wait.h"
#include "tccl/error.h"

namespace tccl {

Work::~Work() = default;

namespace {

void run_callback(const std::function<void()>& callback) noexcept {
  try {
    callback();
  } catch (const std::exception& error) {
    log(LogLevel::error, {}, std::string("a completion callback threw: ") + error.what());
  } catch (...) {
    log(LogLevel::error, {}, "a completion callback threw");
  }
}

void run_all(const std::vector<std::function<void()>>& callbacks) noexcept {
  for (const auto& callback : callbacks) run_callback(callback);
}

}  // namespace

/// Sets a bit of state_, unless the work is done.
bool WorkState::announce(std::uint32_t bit) noexcept {
  std::uint32_t seen = state_.load(std::memory_order_relaxed);
  while (seen != kDone)
    // Release: pairs with the acquire in complete(). Acquire: pairs with its release.
    if (state_.compare_exchange_weak(seen, seen | bit, std::memory_order_acq_rel,
                                     std::memory_order_acquire))
      return true;
  return false;
}

void WorkState::on_done(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (announce(kHasCallbacks)) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  run_callback(callback);
}

void WorkState::complete(std::exception_ptr error, const Submit& run_elsewhere) noexcept {
  const auto keep_this = shared_from_this();
  std::shared_ptr<const void> keepalive = std::move(options_.keepalive);
  error_ = std::move(error);
  std::uint32_t seen = 0;
  // Release: pairs with done(). Acquire: pairs with announce().
  if (state_.compare_exchange_strong(seen, kDone, std::memory_order_acq_rel,
                                     std::memory_order_acquire))
    return on_completed();
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    callbacks.swap(callbacks_);
    seen = state_.exchange(kDone, std::memory_order_acq_rel);  // as above
  }
  on_completed();
  keepalive.reset();  // callbacks may take long
  if ((seen & kHasSleepers) != 0) futex_wake_all(state_, FutexScope::local);
  if (callbacks.empty()) return;
  if (!run_elsewhere) return run_all(callbacks);
  run_elsewhere([keep_this, callbacks = std::move(callbacks)] { run_all(callbacks); });
}

void WorkState::sleep_until_done(Deadline deadline, const std::function<void()>& check_interrupt) {
  while (announce(kHasSleepers)) {
    const auto now = Clock::now();
    if (now >= deadline) return;
    const std::uint32_t seen = state_.load(std::memory_order_relaxed);  // announce() has acquired
    if (seen == kDone) return;
    futex_wait(state_, seen, std::min<Clock::duration>(deadline - now, kInterruptInterval),
               FutexScope::local);
    if (!done() && check_interrupt) check_interrupt();
  }
}

void WorkState::wait_by(Deadline deadline) {
  if (!done() && is_in_forked_child())
    throw Error(Errc::aborted, "this process was forked from a rank and cannot use its groups");
  if (!done()) progress_until_done(deadline);
  if (done() && error_) std::rethrow_exception(error_);
}

void WorkState::wait(Milliseconds timeout) {
  wait_by(deadline_after(timeout));
  if (done()) return;
  const Error error(Errc::timeout, formatted("wait() timed out after {}: {} has not completed",
                                             text_of(timeout), description()));
  on_wait_timeout(error);
  throw error;
}

}  // namespace tccl
