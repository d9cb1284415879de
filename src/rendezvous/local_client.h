// The side of the ranks that connect to the leader of their host: see packets.h for the protocol.
//
//   if (auto client = LocalClient::connect(options)) client->join(memory_fd, pid_fd);
//
// Thread safety: one thread.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/fd.h"
#include "rendezvous/packets.h"
#include "rendezvous/rendezvous.h"

namespace tccl {

class LocalClient {
 public:
  /// Connects and authenticates. None if no leader listens (yet), or if it left meanwhile: then
  /// another rank may become the leader.
  static std::optional<LocalClient> connect(const RendezvousOptions& options);

  /// All steps of a member: calls options.accept() and returns once the group is formed.
  void join(int memory_fd, int pid_fd);

 private:
  LocalClient(const RendezvousOptions& options, Fd socket, int leader_rank);

  void exchange(int memory_fd, int pid_fd);
  void wait_for_packet() const;
  HostConfig receive_config();
  void send_peer_info(const HostConfig& config, int memory_fd, int pid_fd);
  [[nodiscard]] Roster receive_roster() const;
  void accept(const Roster& roster) const;
  template <class Action>
  void report_failure(const Action& action) const;

  const RendezvousOptions* options_;
  Fd socket_;
  int leader_rank_;
  Deadline deadline_;
};

}  // namespace tccl
