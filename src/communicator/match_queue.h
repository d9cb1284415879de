// MatchQueue: which receive gets which message. A receive matches the first message from its source
// (or from any source) with its tag; a message matches the first posted receive that wants it.
// Messages of one sender with one tag are matched in the order in which they were sent.
//
// Thread safety: none; used under the mutex of the P2p engine.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "communicator/p2p_work.h"

namespace tccl {

/// A message that arrived, or whose rts arrived, before a receive for it was posted.
struct UnexpectedMessage {
  int source;
  std::uint64_t tag;
  std::uint64_t message_id;  // if it came as an rts
  std::uint64_t bytes;
  bool eager;                      // the payload is here
  std::vector<std::byte> payload;  // of an eager message
};

class MatchQueue {
 public:
  /// Removes and returns the first posted receive for a message that has arrived, or null.
  P2pWorkPtr take_receive(int source, std::uint64_t tag);
  /// Removes and returns the first unexpected message for a receive.
  std::optional<UnexpectedMessage> take_message(const Operation& receive);

  void post(P2pWorkPtr receive) { receives_.push_back(std::move(receive)); }
  void add_unexpected(UnexpectedMessage message);

  /// Removes a posted receive; null if it is not posted any more.
  P2pWorkPtr remove(const P2pWork& receive);
  /// Removes all posted receives.
  std::list<P2pWorkPtr> take_all_receives() { return std::exchange(receives_, {}); }

 private:
  std::list<P2pWorkPtr> receives_;  // posted and unmatched, in order
  std::list<UnexpectedMessage> unexpected_;
};

}  // namespace tccl
