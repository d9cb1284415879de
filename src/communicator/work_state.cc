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

void WorkState::on_done(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  run_callback(callback);
}

void WorkState::complete(std::exception_ptr error, const Submit& run_elsewhere) noexcept {
  const auto keep_this = shared_from_this();
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    callbacks.swap(callbacks_);
    done_.store(1, std::memory_order_release);  // pairs with done()
  }
  options_.keepalive.reset();
  futex_wake_all(done_, FutexScope::local);
  if (callbacks.empty()) return;
  if (!run_elsewhere) return run_all(callbacks);
  run_elsewhere([keep_this, callbacks = std::move(callbacks)] { run_all(callbacks); });
}

void WorkState::sleep_until_done(Deadline deadline, const std::function<void()>& check_interrupt) {
  while (!done()) {
    const auto now = Clock::now();
    if (now >= deadline) return;
    futex_wait(done_, 0, std::min<Clock::duration>(deadline - now, kInterruptInterval),
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
  const Error error(Errc::timeout,
                    formatted("wait() timed out after {:.1f} s: {} has not completed",
                              std::chrono::duration<double>(timeout).count(), description()));
  on_wait_timeout(error);
  throw error;
}

}  // namespace tccl
