// The processes of other hosts that a ControlPlane knows, and the secrets that authenticate them.
// Thread safety: none; guarded by the ControlPlane's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "health/control_protocol.h"
#include "health/remote_process.h"

namespace tccl::control {

struct Connection;

/// A RemoteProcess with the state of its connections.
struct RemotePeer final : RemoteProcess {
  explicit RemotePeer(Identity identity) : RemoteProcess(std::move(identity)) {}
  using RemoteProcess::note_heard;
  using RemoteProcess::set_state;

  /// For connections from this process: those of the groups in use, newest last.
  std::vector<std::string> secrets;
  bool last_secret_is_retired = false;  // kept until there is another one
  std::string queued_notices;           // encoded; they wait for the first authenticated connection
  /// Notices use the first one, so they stay in order.
  std::vector<Connection*> authenticated;
  bool wanted = false;      // send_notice() was called
  bool connecting = false;  // this process has a connection to it that is not authenticated yet
  /// Departed, died or unreachable. set_state() follows, after the notices received before.
  bool has_final_state = false;
  bool departed = false;  // it sent a departure on one of the connections
  int failed_handshakes = 0;
  /// One of several connections broke: the others are closed at this time.
  Deadline close_all_at = Deadline::max();
  State state_after_break = State::died;  // what the end of the broken one said about the peer
};

/// The ControlPlane hands out RemotePeers as RemoteProcesses.
inline std::shared_ptr<RemotePeer> as_peer(const std::shared_ptr<RemoteProcess>& process) {
  return std::static_pointer_cast<RemotePeer>(process);
}

class PeerTable {
 public:
  /// `max_retired`: how many secrets of closed groups are still accepted.
  explicit PeerTable(std::size_t max_retired = 4096) : max_retired_(max_retired) {}

  void add_secret(const std::string& secret);
  /// The groups with this secret are closed here. Connections from this process use another one. A
  /// rank for which the group is still open may connect with it, to learn of the departure, so it is
  /// accepted until `max_retired` others have been retired.
  void retire_secret(const std::string& secret) noexcept;
  /// Null if the secret is not accepted.
  [[nodiscard]] const std::string* find_secret(const KeyId& key) const;

  /// The RemotePeer with this id, as long as it is alive and in use; else a new one.
  std::shared_ptr<RemotePeer> find_or_add(const RemoteProcess::Identity& identity);
  /// The same. Connections from this process use the secret from now on.
  std::shared_ptr<RemotePeer> find_or_add(const RemoteProcess::Identity& identity,
                                          const std::string& secret);
  /// The peers to which a connection is wanted. Forgets peers that are not in use any more.
  std::vector<std::shared_ptr<RemotePeer>> wanted();

 private:
  struct Secret {
    std::string text;
    std::uint64_t retired = 0;  // 0: in use; else the number of its retirement
  };
  void forget_oldest_retired() noexcept;

  std::size_t max_retired_;
  std::map<KeyId, Secret> secrets_;
  std::uint64_t retirements_ = 0;
  std::map<Bytes32, std::weak_ptr<RemotePeer>> peers_;
};

}  // namespace tccl::control
