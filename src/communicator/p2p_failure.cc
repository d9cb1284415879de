#include "communicator/p2p_failure.h"

#include "base/format.h"
#include "tccl/error.h"

namespace tccl {

void P2pFailureDetector::update_heartbeats(Clock::time_point now) {
  for (int rank = 0; rank < membership_.size(); ++rank)
    heartbeats_[static_cast<std::size_t>(rank)].update(membership_.liveness_counter(rank), now);
}

bool P2pFailureDetector::is_stalled(int rank, Clock::time_point now) const {
  return heartbeats_[static_cast<std::size_t>(rank)].is_stalled(now,
                                                                membership_.stalled_after(rank));
}

std::exception_ptr P2pFailureDetector::check(const P2pWork& work, Clock::time_point now) const {
  if (const int lost = lost_peer(work); lost >= 0)
    return std::make_exception_ptr(
        membership_.peer_lost_error(lost, work.describe(membership_.name())));
  return now >= work.deadline ? timeout_error(work, now) : nullptr;
}

/// A rank that has departed counts as alive until its last message has arrived.
PeerState P2pFailureDetector::state_of(int rank) const {
  const PeerState state = membership_.state_of(rank);
  const bool more_comes = state == PeerState::departed && !protocol_.is_drained(rank);
  return more_comes ? PeerState::alive : state;
}

int P2pFailureDetector::lost_peer(const P2pWork& work) const {
  const int peer = work.operation.peer();
  if (peer == kAnySource) return lost_source();
  return peer != membership_.rank() && state_of(peer) != PeerState::alive ? peer : -1;
}

/// A receive from any source fails when the first rank dies, or when all ranks have departed.
int P2pFailureDetector::lost_source() const {
  int lost = 0;
  int last = -1;
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (rank == membership_.rank()) continue;
    const PeerState state = state_of(rank);
    if (state == PeerState::died) return rank;
    if (state == PeerState::alive) continue;
    last = rank;
    ++lost;
  }
  return lost == membership_.size() - 1 ? last : -1;
}

std::exception_ptr P2pFailureDetector::timeout_error(const P2pWork& work,
                                                     Clock::time_point now) const {
  std::string text = formatted("{} timed out after {} (the timeout of this call)",
                               work.describe(membership_.name()), text_of(work.options().timeout));
  std::vector<int> ranks;
  const int peer = work.operation.peer();
  if (peer != kAnySource && !is_stalled(peer, now)) {
    ranks.push_back(peer);
    text += formatted("; {} {}", membership_.who(peer),
                      work.source() >= 0 || work.moved_bytes != 0
                          ? "is alive, but the message was not complete"
                          : "is alive but has not posted the matching operation");
  }
  // In a ring of messages the peer itself may wait for a stalled rank.
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (rank == membership_.rank() || !is_stalled(rank, now)) continue;
    if (membership_.state_of(rank) != PeerState::alive)
      continue;  // one that has left is not missed
    ranks.push_back(rank);
    text += formatted("; {} is stalled: it has no heartbeat", membership_.who(rank));
  }
  return std::make_exception_ptr(Error(Errc::timeout, text, std::move(ranks)));
}

}  // namespace tccl
