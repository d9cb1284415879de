// What a ControlPlane does after it has released its mutex: callbacks must not run under it.
// Thread safety: none; a local variable of one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "health/peer_table.h"

namespace tccl::control {

using OnNotice = std::function<void(const std::shared_ptr<RemoteProcess>& from, const Notice&)>;

class DeferredActions {
 public:
  void add_notice(const std::shared_ptr<Peer>& from, Notice notice) {
    notices_.emplace_back(from, std::move(notice));
  }
  /// Call with the mutex held: the peer counts as ended from now on.
  void end(const std::shared_ptr<Peer>& peer, RemoteProcess::State state) {
    peer->ended = true;
    ended_.emplace_back(peer, state);
  }
  /// Only the last warning is kept.
  void warn(std::string text) { warning_ = std::move(text); }

  /// Delivers notices first, then sets states: a thread that sees that a peer has ended has got
  /// its last notice.
  void run(const OnNotice& on_notice) const;

 private:
  std::vector<std::pair<std::shared_ptr<Peer>, Notice>> notices_;
  std::vector<std::pair<std::shared_ptr<Peer>, RemoteProcess::State>> ended_;
  std::string warning_;
};

}  // namespace tccl::control
