#include "late_receives.h"

#include <unistd.h>

#include "deadline.h"

namespace torch_ccl {

LateReceives& LateReceives::instance() {
  static std::mutex mutex;
  static LateReceives* own = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != ::getpid()) {  // that of a forked child's parent has no thread there
    own = new LateReceives;
    owner = ::getpid();
  }
  return *own;
}

void LateReceives::add(Attempt attempt) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  new_.push_back(std::move(attempt));
  added_.notify_one();
}

void LateReceives::close() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    thread = std::move(thread_);
  }
  added_.notify_one();
  if (thread.joinable()) thread.join();
  const std::lock_guard lock(mutex_);
  closing_ = false;
}

void LateReceives::work() {
  std::list<Attempt> pending;
  Naps naps;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (pending.empty()) added_.wait(lock, [this] { return closing_ || !new_.empty(); });
      if (!new_.empty()) naps = Naps();
      pending.splice(pending.end(), new_);
      if (pending.empty()) return;
    }
    pending.remove_if([](const Attempt& attempt) { return attempt(); });
    if (!pending.empty()) naps.take();
  }
}

}  // namespace torch_ccl
