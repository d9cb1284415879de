#include "health/remote_process.h"

#include "base/format.h"

namespace tccl {

std::string RemoteProcess::where() const {
  return formatted("host {}, pid {}", identity_.host, identity_.pid);
}

Clock::duration RemoteProcess::silence() const noexcept {
  const Clock::rep heard_at = last_heard_.load(std::memory_order_relaxed);
  if (heard_at == 0) return Clock::duration::zero();
  return Clock::now().time_since_epoch() - Clock::duration(heard_at);
}

}  // namespace tccl
