#include "deferred_receives.h"

#include <unistd.h>

#include <system_error>

#include "polling.h"

namespace torch_ccl {

DeferredReceives& DeferredReceives::instance() {
  static std::mutex mutex;
  static DeferredReceives* instance = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != ::getpid()) {  // a forked child does not have its parent's thread
    instance = new DeferredReceives;
    owner = ::getpid();
  }
  return *instance;
}

void DeferredReceives::add(Attempt attempt) {
  {
    const std::lock_guard lock(mutex_);
    if (has_thread()) {
      added_.push_back(std::move(attempt));
      return changed_.notify_one();
    }
  }
  for (const PollBackoff backoff; !attempt();) backoff.sleep();
}

// Starts the thread if there is none. False if the system allows no more threads.
bool DeferredReceives::has_thread() {
  if (thread_.joinable()) return true;
  try {
    thread_ = std::thread([this] { poll_until_closed(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

void DeferredReceives::close() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_one();
  if (thread.joinable()) thread.join();
  const std::lock_guard lock(mutex_);
  is_closing_ = false;
}

void DeferredReceives::poll_until_closed() {
  std::list<Attempt> pending;
  PollBackoff backoff;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (pending.empty()) changed_.wait(lock, [this] { return is_closing_ || !added_.empty(); });
      if (!added_.empty()) backoff = PollBackoff();
      pending.splice(pending.end(), added_);
      if (pending.empty()) return;
    }
    pending.remove_if([](const Attempt& attempt) { return attempt(); });
    if (!pending.empty()) backoff.sleep();
  }
}

}  // namespace torch_ccl
