// P2pFailureDetector: which sends and receives can no longer complete, and why.
// Thread safety: none; used under the mutex of the P2p engine.
#pragma once

#include <exception>

#include "communicator/p2p_protocol.h"
#include "transport/membership.h"

namespace tccl {

class P2pFailureDetector {
 public:
  P2pFailureDetector(const Membership& membership, const P2pProtocol& protocol)
      : membership_(membership), protocol_(protocol) {}

  /// The error of an operation whose peer is lost or whose deadline has passed, else null. Call
  /// regularly while it is outstanding: it also tracks the peer's heartbeat.
  [[nodiscard]] std::exception_ptr check(P2pWork& work, Clock::time_point now) const;

 private:
  /// The rank without which the work cannot complete, if it has died or departed; else -1.
  [[nodiscard]] int lost_peer(const P2pWork& work) const;
  [[nodiscard]] int lost_source() const;
  [[nodiscard]] PeerState state_of(int rank) const;
  [[nodiscard]] std::exception_ptr timeout_error(const P2pWork& work, Clock::time_point now) const;

  const Membership& membership_;
  const P2pProtocol& protocol_;
};

}  // namespace tccl
