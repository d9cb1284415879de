// P2pFailureDetector: which sends and receives can no longer complete, and why.
// Thread safety: none; used under the mutex of the P2p engine.
#pragma once

#include <exception>
#include <vector>

#include "communicator/p2p_protocol.h"
#include "health/heartbeat_watcher.h"
#include "transport/membership.h"

namespace tccl {

class P2pFailureDetector {
 public:
  P2pFailureDetector(const Membership& membership, const P2pProtocol& protocol)
      : membership_(membership),
        protocol_(protocol),
        heartbeats_(static_cast<std::size_t>(membership.size())) {}

  /// Call regularly while operations are outstanding, before check().
  void update_heartbeats(Clock::time_point now);
  /// The error of an operation whose peer is lost or whose deadline has passed, else null.
  [[nodiscard]] std::exception_ptr check(const P2pWork& work, Clock::time_point now) const;

 private:
  /// The rank without which the work cannot complete, if it has died or departed; else -1.
  [[nodiscard]] int lost_peer(const P2pWork& work) const;
  [[nodiscard]] int lost_source() const;
  [[nodiscard]] PeerState state_of(int rank) const;
  [[nodiscard]] std::exception_ptr timeout_error(const P2pWork& work, Clock::time_point now) const;
  [[nodiscard]] bool is_stalled(int rank, Clock::time_point now) const;

  const Membership& membership_;
  const P2pProtocol& protocol_;
  /// By rank: also those of ranks that no operation waits for, because a peer may wait for them.
  std::vector<HeartbeatWatcher> heartbeats_;
};

}  // namespace tccl
