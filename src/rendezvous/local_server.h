// The coordinator's side of the handshake on a host: accepts the other ranks, collects their
// PeerInfos and descriptors, and distributes the roster.
//
//   LocalServer server(options, std::move(listener));
//   while (!discovery.is_done()) server.poll(discovery.fd());
//   roster.local = server.gather_peer_infos(host_map, address);
//   server.distribute(roster, memory_fd, pid_fd);
//   server.announce(Status{});
//
// Thread safety: one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/challenge_response.h"
#include "base/clock.h"
#include "base/fd.h"
#include "rendezvous/packets.h"
#include "rendezvous/rendezvous.h"
#include "topology/host_map.h"

namespace tccl {

class LocalServer {
 public:
  LocalServer(const RendezvousOptions& options, Fd listener);

  /// Handles the events of all connections, for at most kInterruptInterval; returns early if
  /// `other_fd` is readable. Throws missing_ranks_timeout() at the deadline.
  void poll(int other_fd);

  /// The PeerInfos and descriptors of the ranks of this host, in order.
  std::vector<LocalPeer> gather_peer_infos(const HostMap& host_map, const std::string& address);

  /// Calls options.apply_roster() here and on all ranks of this host. Throws if one of them fails.
  void distribute(const Roster& roster, int memory_fd, int pid_fd);

  /// Sends the outcome to all ranks of this host. Ranks read one outcome only, so call it once.
  void announce(const Status& status) noexcept;

  /// Throws if a rank of this host reported a failure or closed its connection. For polling loops
  /// that wait for something else.
  void check_connections();

  /// This rank and the ranks that have authenticated themselves.
  [[nodiscard]] std::vector<int> joined_ranks() const;

 private:
  struct Connection {
    Fd socket;
    Challenge challenge;
    Deadline handshake_deadline;
    bool authenticated = false;
    PeerInfo claimed{};  // rank, size, host and pid, once authenticated
    std::optional<LocalPeer> peer;
  };

  void poll_once(int other_fd, Deadline until);
  void accept_connection();
  void handle_failed_accept() const;
  void refuse_other_user(int socket);
  void warn_dropped(const std::string& reason);
  void drop_unauthenticated();
  void advance(Connection& connection);
  void authenticate(Connection& connection);
  void check_rank(const Connection& connection) const;
  void receive_peer_info(Connection& connection);
  [[nodiscard]] int received_peer_infos() const;
  [[nodiscard]] std::vector<LocalPeer> take_local_peers();
  template <class Exchange>
  void exchange_with(Connection& connection, const Exchange& exchange);
  void send_roster(int socket, const Roster& roster, int memory_fd, int pid_fd) const;
  [[nodiscard]] Error timeout_of_silent_ranks() const;

  const RendezvousOptions& options_;
  Fd listener_;
  PeerInfo self_;
  std::vector<Connection> connections_;
  bool warned_ = false;
};

}  // namespace tccl
