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
  void add_notice(const std::shared_ptr<RemotePeer>& from, Notice notice) {
    notices_.emplace_back(from, std::move(notice));
  }
  /// The peer has departed, died or become unreachable. Call with the mutex held.
  void set_final_state(const std::shared_ptr<RemotePeer>& peer, RemoteProcess::State state) {
    peer->has_final_state = true;
    final_states_.emplace_back(peer, state);
  }
  /// Only the last warning is kept.
  void warn(std::string text) { warning_ = std::move(text); }

  /// Delivers notices first, then sets states: a thread that sees the final state of a peer has
  /// got its last notice.
  void run(const OnNotice& on_notice) const;

 private:
  std::vector<std::pair<std::shared_ptr<RemotePeer>, Notice>> notices_;
  std::vector<std::pair<std::shared_ptr<RemotePeer>, RemoteProcess::State>> final_states_;
  std::string warning_;
};

}  // namespace tccl::control
