// Tracks how long the heartbeat counter of one process has not changed.
//
//   HeartbeatWatcher watcher;
//   watcher.update(peer.heartbeats(), Clock::now());             // in the polling loop
//   if (watcher.is_stalled(Clock::now(), kStalledAfter)) ...  // stopped, not dead
//
// Thread safety: none; a value that its owner updates.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace tccl {

class HeartbeatWatcher {
 public:
  /// Call regularly while waiting: `now` counts as the time of the change if `beats` differs from
  /// the last update, or if this is the first update.
  void update(std::uint32_t beats, Clock::time_point now) noexcept {
    if (changed_at_ && beats == beats_) return;
    beats_ = beats;
    changed_at_ = now;
  }

  /// Time since the last change; zero before the first update.
  [[nodiscard]] Clock::duration silence(Clock::time_point now) const noexcept {
    return changed_at_ ? now - *changed_at_ : Clock::duration::zero();
  }

  [[nodiscard]] bool is_stalled(Clock::time_point now, Clock::duration limit) const noexcept {
    return silence(now) >= limit;
  }

  /// Forgets the last change: a wait that begins later must not count the time before it, in which
  /// nobody called update().
  void reset() noexcept { changed_at_.reset(); }

 private:
  std::uint32_t beats_ = 0;
  std::optional<Clock::time_point> changed_at_;  // none before the first update
};

}  // namespace tccl
