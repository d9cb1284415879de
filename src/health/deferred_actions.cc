#include "health/deferred_actions.h"

#include <atomic>

#include "base/log.h"

namespace tccl::control {

void DeferredActions::run(const OnNotice& on_notice) const {
  for (const auto& [peer, notice] : notices_)
    if (on_notice) on_notice(peer, notice);
  for (const auto& [peer, state] : final_states_) peer->set_state(state);
  // Once per process: a port scan may open thousands of connections.
  static std::atomic<bool> warned{false};  // relaxed: orders nothing
  if (!warning_.empty() && !warned.exchange(true, std::memory_order_relaxed)) log_warning(warning_);
}

}  // namespace tccl::control
