// What a ControlPlane does after it has released its mutex: callbacks must not run under it.
// Thread safety: none; a local variable of one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  /// Each kind is logged once per process: a port scan may open thousands of connections.
  enum class Warning : std::uint8_t { unauthenticated, flood, broken, refused, shortage };
  static constexpr std::size_t kWarnings = 5;
  /// Of each kind only the last one is kept.
  void warn(Warning kind, std::string text) {
    warnings_[static_cast<std::size_t>(kind)] = std::move(text);
  }

  /// Delivers notices first, then sets states: a thread that sees the final state of a peer has
  /// got its last notice.
  void run(const OnNotice& on_notice) const;

 private:
  std::vector<std::pair<std::shared_ptr<RemotePeer>, Notice>> notices_;
  std::vector<std::pair<std::shared_ptr<RemotePeer>, RemoteProcess::State>> final_states_;
  std::array<std::string, kWarnings> warnings_;
};

}  // namespace tccl::control
