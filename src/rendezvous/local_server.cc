#include "rendezvous/local_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/system_error.h"
#include "base/unix_socket.h"
#include "base/wait.h"
#include "rendezvous/init_errors.h"
#include "tccl/error.h"

namespace tccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLocalHandshakeTimeout{2000};
/// Any user of the machine may connect to an abstract socket: connections that do not authenticate
/// themselves must not exhaust the descriptors and so keep the ranks out.
constexpr std::size_t kMaxUnauthenticated = 64;

/// The descriptors that accompany the PeerInfo of `rank`; none if it is on another host.
std::vector<int> descriptors_of(int rank, const std::vector<LocalPeer>& local) {
  const auto found =
      std::ranges::find(local, rank, [](const LocalPeer& peer) { return peer.peer_info.rank; });
  if (found == local.end()) return {};
  std::vector<int> fds{found->memory.get()};
  if (found->process) fds.push_back(found->process.get());
  return fds;
}

void check_hosts(const std::vector<LocalPeer>& local, const HostMap& host_map,
                 const RendezvousOptions& options) {
  for (const LocalPeer& peer : local) {
    const int rank = peer.peer_info.rank;
    if (!host_map.same_host(rank, options.rank))
      throw init_error(options.group, Errc::invalid_argument,
                       formatted("two processes, on two hosts, have rank {}", rank), {rank});
  }
}

}  // namespace

LocalServer::LocalServer(const RendezvousOptions& options, Fd listener)
    : options_(options), listener_(std::move(listener)) {
  self_.rank = options.rank;
  self_.size = options.size;
  self_.pid = ::getpid();
  std::strncpy(self_.host, host_name().c_str(), sizeof self_.host - 1);
}

// ---- connections ----

void LocalServer::poll(int other_fd) {
  if (Clock::now() >= options_.deadline) throw missing_ranks_timeout(options_, joined_ranks());
  if (options_.check_interrupt) options_.check_interrupt();
  poll_once(other_fd, std::min(options_.deadline, Clock::now() + kInterruptInterval));
  drop_unauthenticated();
}

void LocalServer::poll_once(int other_fd, Deadline until) {
  std::vector<pollfd> entries{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                              {.fd = other_fd, .events = POLLIN, .revents = 0}};
  for (const Connection& connection : connections_)
    entries.push_back({.fd = connection.socket.get(), .events = POLLIN, .revents = 0});
  if (::poll(entries.data(), entries.size(), poll_timeout(until)) < 0) return;
  for (std::size_t i = 2; i < entries.size(); ++i)
    if (entries[i].revents != 0) advance(connections_[i - 2]);
  std::erase_if(connections_, [](const Connection& connection) { return !connection.socket; });
  if (entries[0].revents != 0) accept_connection();
}

void LocalServer::accept_connection() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return handle_failed_accept();
  if (!options_.may_have_other_users && !belongs_to_this_user_or_root(socket.get()))
    return refuse_other_user(socket.get());
  Connection connection{.socket = std::move(socket),
                        .challenge = make_challenge(),
                        .handshake_deadline = deadline_after(kLocalHandshakeTimeout),
                        .peer = {}};
  try {
    send_packet(connection.socket.get(), connection.challenge, connection.handshake_deadline);
    connections_.push_back(std::move(connection));
  } catch (const Error&) {
    // The other side closed the connection. A rank will connect again.
  }
}

void LocalServer::handle_failed_accept() const {
  const bool has_strangers = std::ranges::any_of(
      connections_, [](const Connection& connection) { return !connection.authenticated; });
  // Unauthenticated connections will time out, and give their descriptors back.
  if ((errno == EMFILE || errno == ENFILE) && !has_strangers)
    throw_system_error("cannot accept a rank on the rendezvous socket");
  std::this_thread::sleep_for(milliseconds(10));
}

/// A rank of this group gets the reason, too.
void LocalServer::refuse_other_user(int socket) {
  const std::string peer = peer_text(socket);
  warn_dropped("it belongs to " + peer);
  const Error reason = other_user_error(options_, formatted("user {}", ::geteuid()), peer);
  try {
    send_packet(socket, failure_status(reason), deadline_after(kLocalHandshakeTimeout));
  } catch (const Error&) {
    // It has closed the connection.
  }
}

void LocalServer::warn_dropped(const std::string& reason) {
  if (std::exchange(warned_, true)) return;
  log_warning("dropped an unauthenticated connection to the rendezvous socket: " + reason,
              self_.rank);
}

void LocalServer::drop_unauthenticated() {
  const auto now = Clock::now();
  std::erase_if(connections_, [&](const Connection& connection) {
    return !connection.authenticated && now >= connection.handshake_deadline;
  });
  const std::size_t limit = kMaxUnauthenticated + static_cast<std::size_t>(self_.size);
  for (auto it = connections_.begin(); connections_.size() > limit && it != connections_.end();)
    it = it->authenticated ? it + 1 : connections_.erase(it);  // oldest first
}

/// Handles the packet that is there. A connection that breaks the protocol before it is
/// authenticated is dropped; one that does so later fails the rendezvous.
void LocalServer::advance(Connection& connection) {
  if (connection.authenticated) return receive_peer_info(connection);
  try {
    authenticate(connection);
  } catch (const Error& error) {
    if (connection.authenticated) throw;  // a rank of this group, so the rendezvous fails
    warn_dropped(error.what());
    connection.socket.reset();
  }
}

void LocalServer::authenticate(Connection& connection) {
  const auto request = receive_packet<JoinRequest>(connection.socket.get(), Clock::now());
  if (!verify(options_.secret, connection.challenge, request.response, kLocalHandshake))
    throw Error(Errc::system, "it does not know the group's secret");
  connection.authenticated = true;
  connection.claimed.rank = request.rank;
  connection.claimed.size = request.size;
  connection.claimed.pid = request.pid;
  std::memcpy(connection.claimed.host, self_.host, sizeof connection.claimed.host);
  check_same_size(options_.group, self_, connection.claimed);
  check_rank(connection);
  const JoinReply reply{
      confirm(options_.secret, connection.challenge, request.response, kLocalHandshake),
      self_.rank};
  exchange_with(connection, [&](int socket) { send_packet(socket, reply, options_.deadline); });
}

/// Calls `exchange` with the socket of a rank that has joined. Throws the failure that the rank
/// reports, or that it left. Closes the connection then: check_connections() must not report the
/// rank once more, while the other hosts get the reason.
template <class Exchange>
void LocalServer::exchange_with(Connection& connection, const Exchange& exchange) {
  try {
    exchange(connection.socket.get());
  } catch (const Error& error) {
    if (is_unattributed_system_error(error)) throw;  // of this process: the rank gets the reason
    connection.socket.reset();
    if (!error.ranks().empty()) throw;  // the rank reported it
    throw incomplete_rank_error(options_, describe(connection.claimed), connection.claimed.rank,
                                error);
  }
}

void LocalServer::check_rank(const Connection& connection) const {
  const int rank = connection.claimed.rank;
  if (rank < 0 || rank >= self_.size)
    throw init_error(
        options_.group, Errc::invalid_argument,
        formatted("{} is not one of the {} ranks", describe(connection.claimed), self_.size),
        {rank});
  const bool taken =
      rank == self_.rank || std::ranges::any_of(connections_, [&](const Connection& other) {
        return &other != &connection && other.authenticated && other.claimed.rank == rank;
      });
  if (taken)
    throw init_error(
        options_.group, Errc::invalid_argument,
        formatted("two processes have rank {}; one is {}", rank, describe(connection.claimed)),
        {rank});
}

void LocalServer::check_connections() {
  for (Connection& connection : connections_) {
    if (!connection.authenticated || !wait_readable(connection.socket.get(), Clock::now()))
      continue;
    exchange_with(connection, [](int socket) {
      throw_if_failure_received(socket, Clock::now());
      if (next_packet_bytes(socket) == 0) throw Error(Errc::peer_lost, "Connection closed by peer");
    });
  }
}

std::vector<int> LocalServer::joined_ranks() const {
  std::vector<int> ranks{self_.rank};
  for (const Connection& connection : connections_)
    if (connection.authenticated) ranks.push_back(connection.claimed.rank);
  return ranks;
}

// ---- PeerInfos ----

std::vector<LocalPeer> LocalServer::gather_peer_infos(const HostMap& host_map,
                                                      const std::string& address) {
  HostAddress host_address{};
  std::strncpy(host_address.address, address.c_str(), sizeof host_address.address - 1);
  for (Connection& connection : connections_)
    if (connection.authenticated)
      exchange_with(connection,
                    [&](int socket) { send_packet(socket, host_address, options_.deadline); });
  self_ = options_.make_peer_info(address);
  self_.host_index = host_map.host_of(self_.rank);
  while (received_peer_infos() + 1 < host_map.local_size(self_.host_index)) {
    if (Clock::now() >= options_.deadline) throw timeout_of_silent_ranks();
    poll(/*other_fd=*/-1);
  }
  std::vector<LocalPeer> local = take_local_peers();
  check_hosts(local, host_map, options_);
  return local;
}

/// Names the ranks that have connected but sent no PeerInfo, or else those that have not connected.
Error LocalServer::timeout_of_silent_ranks() const {
  std::vector<int> ranks;
  std::string names;
  for (const Connection& connection : connections_) {
    if (!connection.authenticated || connection.peer) continue;
    ranks.push_back(connection.claimed.rank);
    names += (names.empty() ? "" : ", ") + describe(connection.claimed);
  }
  if (ranks.empty()) return missing_ranks_timeout(options_, joined_ranks());
  return init_timeout(options_, names + " joined but never completed the rendezvous", ranks);
}

int LocalServer::received_peer_infos() const {
  return static_cast<int>(std::ranges::count_if(
      connections_, [](const Connection& connection) { return connection.peer.has_value(); }));
}

std::vector<LocalPeer> LocalServer::take_local_peers() {
  std::vector<LocalPeer> local;
  local.push_back({.peer_info = self_, .memory = {}, .process = {}});
  for (Connection& connection : connections_)
    if (connection.peer) local.push_back(std::move(*connection.peer));
  std::ranges::sort(local, {}, [](const LocalPeer& peer) { return peer.peer_info.rank; });
  return local;
}

void LocalServer::receive_peer_info(Connection& connection) {
  LocalPeer peer;
  exchange_with(connection, [&](int socket) {
    if (connection.peer) throw Error(Errc::peer_lost, "Connection closed by peer");
    throw_if_failure_received(socket, Clock::now());
    std::vector<Fd> fds;
    peer.peer_info = receive_packet<PeerInfo>(socket, Clock::now(), &fds);
    check_valid(peer.peer_info, self_.size, /*hosts=*/1);  // host_index is set below
    if (peer.peer_info.rank != connection.claimed.rank)
      throw Error(Errc::mismatch, "its PeerInfo has another rank than its request");
    if (fds.empty()) throw Error(Errc::internal, "received a PeerInfo without shared memory");
    peer.memory = std::move(fds[0]);
    if (fds.size() > 1) peer.process = std::move(fds[1]);
  });
  peer.peer_info.host_index = self_.host_index;
  check_compatible(options_.group, self_, peer.peer_info);
  connection.peer = std::move(peer);
}

// ---- roster and outcome ----

void LocalServer::distribute(const Roster& roster, int memory_fd, int pid_fd) {
  options_.apply_roster(roster);
  // One connection at a time: the kernel limits the number of descriptors in flight.
  for (Connection& connection : connections_)
    if (connection.peer)
      exchange_with(connection,
                    [&](int socket) { send_roster(socket, roster, memory_fd, pid_fd); });
}

/// Throws the failure that the rank reports.
void LocalServer::send_roster(int socket, const Roster& roster, int memory_fd, int pid_fd) const {
  std::vector<int> own{memory_fd};
  if (pid_fd >= 0) own.push_back(pid_fd);
  for (const PeerInfo& peer_info : roster.all)
    send_packet(socket, peer_info, options_.deadline,
                peer_info.rank == self_.rank ? own : descriptors_of(peer_info.rank, roster.local));
  throw_if_failed(receive_packet<Status>(socket, options_.deadline));
}

void LocalServer::announce(const Status& status) noexcept {
  for (const Connection& connection : connections_) {
    if (!connection.authenticated) continue;
    try {
      send_packet(connection.socket.get(), status, deadline_after(kLocalHandshakeTimeout));
    } catch (const std::exception&) {
      // The rank has closed its connection and needs no status.
    }
  }
}

}  // namespace tccl
