// The side of the ranks that connect to the coordinator of their host: see packets.h for the
// protocol.
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
  /// Connects and authenticates. None if no coordinator listens (yet), or if it has exited
  /// meanwhile: then another rank may become the coordinator.
  static std::optional<LocalClient> connect(const RendezvousOptions& options);

  /// All steps of a member: calls options.apply_roster() and returns once the group is formed.
  void join(int memory_fd, int pid_fd);
  /// Sends the coordinator the reason why this rank has failed.
  void report(const Status& failure) const noexcept;
  /// Throws the failure of the coordinator if it arrives within this time.
  void throw_pending_failure(std::chrono::milliseconds wait) const;

 private:
  LocalClient(const RendezvousOptions& options, Fd socket, int coordinator_rank);

  void exchange(int memory_fd, int pid_fd);
  void wait_for_packet() const;
  void throw_if_coordinator_stalled() const;
  HostAddress receive_host_address();
  void send_peer_info(const HostAddress& host_address, int memory_fd, int pid_fd);
  [[nodiscard]] Roster receive_roster() const;
  void apply_roster(const Roster& roster) const;
  template <class Action>
  void report_failure(const Action& action) const;

  const RendezvousOptions* options_;
  Fd socket_;
  int coordinator_rank_;
  Deadline deadline_;
};

}  // namespace tccl
