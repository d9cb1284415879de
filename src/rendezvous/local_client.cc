#include "rendezvous/local_client.h"

#include <unistd.h>

#include <algorithm>

#include "base/format.h"
#include "base/unix_socket.h"
#include "base/wait.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/init_errors.h"
#include "rendezvous/join_record.h"
#include "rendezvous/secret.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using std::chrono::milliseconds;

/// The coordinator waits for other ranks until options.deadline. It then finds out who is missing,
/// which takes up to 3 s (known_cause_of_timeout(), stalled_members_timeout()), and reports it: its
/// members wait for that report, so that they do not blame the coordinator.
constexpr milliseconds kReportGrace{5000};

/// Throws Error{timeout} at the deadline. `while_waiting` runs every kInterruptInterval.
template <class WhileWaiting>
void wait_readable_until(int socket, Deadline deadline, const RendezvousOptions& options,
                         const WhileWaiting& while_waiting) {
  while (!wait_readable(socket, std::min(deadline, Clock::now() + kInterruptInterval))) {
    if (options.check_interrupt) options.check_interrupt();
    while_waiting();
    if (Clock::now() >= deadline) throw Error(Errc::timeout, "no answer before the timeout");
  }
}

/// The coordinator's rank. Throws Error{peer_lost} if it has exited.
int authenticate(int socket, const RendezvousOptions& options) {
  const auto do_nothing = [] {};
  wait_readable_until(socket, options.deadline, options, do_nothing);
  throw_if_failure_received(socket, options.deadline);
  const auto challenge = receive_packet<Challenge>(socket, options.deadline);
  const Response response = respond(options.secret, challenge, kLocalHandshake);
  send_packet(socket, JoinRequest{response, options.rank, options.size, ::getpid()},
              options.deadline);
  wait_readable_until(socket, options.deadline, options, do_nothing);
  throw_if_failure_received(socket, options.deadline);
  const auto reply = receive_packet<JoinReply>(socket, options.deadline);
  if (!verify(options.secret, challenge, response, reply.confirmation, kLocalHandshake))
    throw init_error(options.group, Errc::system,
                     "the process that listens on the rendezvous socket does not know the group's "
                     "secret",
                     {options.rank});
  return reply.coordinator_rank;
}

/// Reads on if the coordinator sent the reason of its failure before it closed the connection.
void throw_pending_status(int socket) {
  while (wait_readable(socket, Clock::now())) {
    throw_if_failure_received(socket, Clock::now());
    if (next_packet_bytes(socket) != sizeof(PeerInfo)) return;
    discard_packet(socket);  // this process may have no descriptors left for those of the packet
  }
}

/// For waits that are not for the coordinator's next packet.
void throw_if_coordinator_failed(int socket) {
  if (!wait_readable(socket, Clock::now())) return;
  throw_if_failure_received(socket, Clock::now());
  if (next_packet_bytes(socket) == 0) throw Error(Errc::peer_lost, "Connection closed by peer");
}

}  // namespace

LocalClient::LocalClient(const RendezvousOptions& options, Fd socket, int coordinator_rank)
    : options_(&options),
      socket_(std::move(socket)),
      coordinator_rank_(coordinator_rank),
      deadline_(deadline_after(time_left(options.deadline) + kReportGrace)) {}

std::optional<LocalClient> LocalClient::connect(const RendezvousOptions& options) {
  Fd socket = connect_to(rendezvous_socket_name(options.secret));
  if (!socket) return std::nullopt;
  if (!options.may_have_other_users && !belongs_to_this_user_or_root(socket.get()))
    throw other_user_error(options, peer_text(socket.get()), formatted("user {}", ::geteuid()));
  try {
    const int coordinator_rank = authenticate(socket.get(), options);
    return LocalClient(options, std::move(socket), coordinator_rank);
  } catch (const Error& error) {
    // A coordinator that failed sends a Status, which names ranks; one that merely exited does not.
    if (error.code() != Errc::peer_lost || !error.ranks().empty()) throw;
    return std::nullopt;
  }
}

void LocalClient::join(int memory_fd, int pid_fd) {
  try {
    exchange(memory_fd, pid_fd);
  } catch (const Error& error) {
    // A Status names ranks; an error without any comes from the socket.
    const bool socket_failed =
        error.ranks().empty() && (error.code() == Errc::peer_lost || error.code() == Errc::timeout);
    if (!socket_failed) throw;
    throw_pending_status(socket_.get());
    const Error reason =
        incomplete_rank_error(*options_,
                              formatted("rank {} (host {}), the coordinator of its host,",
                                        coordinator_rank_, host_name()),
                              coordinator_rank_, error);
    // The other hosts wait for what the coordinator has not published.
    try_publish_failure(*options_, failure_status(reason));
    throw reason;
  }
}

void LocalClient::report(const Status& failure) const noexcept {
  try {
    send_packet(socket_.get(), failure, deadline_after(kReportGrace));
  } catch (const std::exception&) {
    // The coordinator has closed the connection: it has failed, too.
  }
}

void LocalClient::throw_pending_failure(std::chrono::milliseconds wait) const {
  if (wait_readable(socket_.get(), deadline_after(wait))) throw_pending_status(socket_.get());
}

void LocalClient::exchange(int memory_fd, int pid_fd) {
  send_peer_info(receive_host_address(), memory_fd, pid_fd);
  apply_roster(receive_roster());
  wait_for_packet();
  throw_if_failed(receive_packet<Status>(socket_.get(), deadline_));
}

void LocalClient::wait_for_packet() const {
  wait_readable_until(socket_.get(), deadline_, *options_,
                      [this] { throw_if_coordinator_stalled(); });
}

/// After the timeout: a coordinator that is stopped sends no report.
void LocalClient::throw_if_coordinator_stalled() const {
  if (Clock::now() < options_->deadline) return;
  const JoinRecord record = read_join_record(store_client_for(*options_, {}), coordinator_rank_);
  if (record.identity.is_stopped())
    throw init_timeout(*options_,
                       formatted("rank {} ({}), the coordinator of its host, is stalled: stopped "
                                 "while the group was formed",
                                 coordinator_rank_, record.process),
                       {coordinator_rank_});
}

/// Also publishes which rank coordinates this host; until the address arrives, this rank waits for
/// ranks of all hosts.
HostAddress LocalClient::receive_host_address() {
  StoreClient client = store_client_for(*options_, {});
  client.deadline = deadline_;
  JoinRecordWriter join_record(client, options_->rank);
  client.while_waiting = [&](int rank) {
    if (options_->check_interrupt) options_->check_interrupt();
    join_record.write_waiting();
    throw_if_coordinator_failed(socket_.get());
    throw_if_coordinator_stalled();
    throw_if_ended(*options_, rank);
  };
  gather_host_coordinators(client, *options_, coordinator_rank_);
  wait_readable_until(socket_.get(), deadline_, *options_, [&] {
    join_record.write_waiting();
    throw_if_coordinator_stalled();
  });
  throw_if_failure_received(socket_.get(), deadline_);
  return receive_packet<HostAddress>(socket_.get(), deadline_);
}

void LocalClient::send_peer_info(const HostAddress& host_address, int memory_fd, int pid_fd) {
  std::vector<int> fds{memory_fd};
  if (pid_fd >= 0) fds.push_back(pid_fd);
  report_failure([&] {
    send_packet(socket_.get(), options_->make_peer_info(host_address.text()), deadline_, fds);
  });
}

Roster LocalClient::receive_roster() const {
  Roster roster;
  for (int i = 0; i < options_->size; ++i) {
    wait_for_packet();
    throw_if_failure_received(socket_.get(), deadline_);
    std::vector<Fd> fds;
    LocalPeer peer;
    peer.peer_info = receive_packet<PeerInfo>(socket_.get(), deadline_, &fds);
    check_valid(peer.peer_info, options_->size, /*hosts=*/options_->size);
    if (peer.peer_info.rank != i) throw Error(Errc::system, "the roster is not in order");
    roster.all.push_back(peer.peer_info);
    if (fds.empty()) continue;  // a rank of another host
    peer.memory = std::move(fds[0]);
    if (fds.size() > 1) peer.process = std::move(fds[1]);
    roster.local.push_back(std::move(peer));
  }
  return roster;
}

void LocalClient::apply_roster(const Roster& roster) const {
  report_failure([&] { options_->apply_roster(roster); });
  send_packet(socket_.get(), Status{}, deadline_);
}

/// Sends the coordinator the reason if `action` throws.
template <class Action>
void LocalClient::report_failure(const Action& action) const {
  try {
    action();
  } catch (const Error&) {
    report(failure_status(attributed_to_this_rank(*options_)));
    throw;
  }
}

}  // namespace tccl
