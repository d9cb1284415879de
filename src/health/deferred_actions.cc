#include "health/deferred_actions.h"

#include <atomic>

#include "base/log.h"

namespace tccl::control {

void DeferredActions::run(const OnNotice& on_notice) const {
  for (const auto& [peer, notice] : notices_)
    if (on_notice) on_notice(peer, notice);
  for (const auto& [peer, state] : final_states_) peer->set_state(state);
  static std::array<std::atomic<bool>, kWarnings> warned{};  // relaxed: orders nothing
  for (std::size_t kind = 0; kind < kWarnings; ++kind)
    if (!warnings_[kind].empty() && !warned[kind].exchange(true, std::memory_order_relaxed))
      log_warning(warnings_[kind]);
}

}  // namespace tccl::control
