#include "rendezvous/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "base/format.h"
#include "base/log.h"
#include "base/system_error.h"
#include "base/unix_socket.h"
#include "base/wait.h"
#include "rendezvous/host_discovery.h"
#include "rendezvous/interfaces.h"
#include "rendezvous/packets.h"
#include "tccl/error.h"
#include "tccl/types.h"
#include "topology/host_map.h"

namespace tccl {
namespace {

using std::chrono::milliseconds;

Digest member_proof(const std::string& secret, const Digest& host, const Digest& member) {
  return hmac_sha256(secret, formatted("member{}{}", as_text(host), as_text(member)));
}
Digest host_proof(const std::string& secret, const Digest& host, const Digest& member) {
  return hmac_sha256(secret, formatted("host{}{}", as_text(member), as_text(host)));
}

std::string socket_name(const std::string& secret) {
  const Digest digest = hmac_sha256(secret, "meeting point");
  return "tccl-" + to_hex(std::span(digest).first(16));
}

constexpr const char* kSecretKey = "secret";
std::string rank_key(int rank) { return formatted("rank/{}", rank); }

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty())
    throw Error(Errc::invalid_argument,
                formatted("CCL_SECRET_FILE={}: it cannot be read, or is empty", path));
  return text.str();
}

constexpr std::size_t kSecretDigits = 2 * sizeof(Digest);

std::string whole_secret(const std::string& from_file, const std::string& from_store) {
  return from_file.empty() ? from_store : to_hex(hmac_sha256(from_file, from_store));
}
/// By which ranks see that theirs is the same.
std::string check_of(const std::string& secret) { return to_hex(hmac_sha256(secret, "check")); }

void poll_interrupt(const RendezvousOptions& options) {
  if (options.poll_interrupt) options.poll_interrupt();
}

/// Throws Error{timeout} if nothing arrives before the deadline.
void await_packet(int socket, const RendezvousOptions& options, Deadline deadline) {
  while (!wait_readable(socket, std::min(deadline, Clock::now() + kInterruptPeriod))) {
    poll_interrupt(options);
    if (Clock::now() >= deadline) throw Error(Errc::timeout, "no answer");
  }
}

/// If what comes next is the end of the meeting, not what was expected.
void throw_if_status(int socket, Deadline deadline) {
  static_assert(sizeof(Status) != sizeof(PeerInfo) && sizeof(Status) != sizeof(HostConfig),
                "the size tells them apart");
  if (length_of_next_packet(socket) == sizeof(Status))
    throw_if_failed(receive_packet<Status>(socket, deadline));
}

/// A connection to the meeting point that has not finished its handshake, or has.
struct PendingConnection {
  Fd socket;
  Digest challenge;
  Deadline handshake_deadline;  // to prove itself
  bool authenticated = false;
  PeerInfo said{};  // rank and pid, once it is authenticated
  std::optional<LocalPeer> local_peer;
};

/// The side that won the race to bind the name.
class LocalServer {
 public:
  LocalServer(const RendezvousOptions& options, Fd listener)
      : options_(options), listener_(std::move(listener)) {
    self_.rank = options.rank;
    self_.size = options.size;
    self_.pid = ::getpid();
    std::strncpy(self_.host, host_name().c_str(), sizeof self_.host - 1);
  }

  void run(int memory_fd, int process_fd) {
    try {
      discover_hosts();
      has_other_hosts() ? run_with_others(memory_fd, process_fd) : run_alone(memory_fd, process_fd);
    } catch (const Error& error) {
      give_up(failure_status(error));
      throw;
    } catch (...) {
      give_up(failure_status(Error(Errc::aborted,
                                   formatted("{} was interrupted while group {} was being formed",
                                             describe(self_), options_.group),
                                   {self_.rank})));
      throw;
    }
  }

 private:
  void run_alone(int memory_fd, int process_fd) {
    Roster roster = gather_peer_infos(/*address=*/"");
    for (const LocalPeer& local_peer : roster.local) roster.all.push_back(local_peer.peer_info);
    distribute_roster(roster, memory_fd, process_fd);
    announce(Status{});
  }

  /// Whatever goes wrong on one host is told to all of them: nobody is left waiting.
  void run_with_others(int memory_fd, int process_fd) {
    const std::string address = agree_on_address();
    Roster roster;
    const Status local = status_of([&] { roster = gather_peer_infos(address); });
    roster.all = exchange_peer_infos(local, roster.local);
    const Status accepted = status_of([&] { distribute_roster(roster, memory_fd, process_fd); });
    const Status common = agree_on_status(accepted);
    throw_if_failed(common);
    announce(common);
  }

  /// Nobody is left waiting: neither the connections nor, for what this host owes them, other
  /// hosts.
  void give_up(const Status& status) noexcept {
    announce(status);
    try {
      if (!host_map_) publish_failure(store_client(), status);
      if (pending_round_ != nullptr)
        store_contribute(store_client(), pending_round_, self_.host_index,
                         std::string(as_bytes(status)));
    } catch (const std::exception&) {
      // Then they find out by themselves.
    }
  }

  template <class Action>
  static Status status_of(const Action& action) {
    try {
      action();
      return {};
    } catch (const Error& error) {
      return failure_status(error);
    }
  }

  // --- which ranks are here ---

  void discover_hosts() {
    HostDiscovery discovery(options_);
    while (!discovery.is_over()) serve_connections(discovery.fd());
    try {
      host_map_.emplace(discovery.result());
    } catch (const Error& error) {
      if (error.code() == Errc::timeout) throw missing_ranks_error();
      throw;
    }
    if (has_other_hosts()) pending_round_ = kAddresses;
    self_.host_index = host_map_->host_of(self_.rank);
  }

  [[nodiscard]] bool has_other_hosts() const { return host_map_->hosts() > 1; }
  [[nodiscard]] int ranks_here() const { return host_map_->local_size(self_.host_index); }

  // --- connections ---

  void serve_connections(int other_fd) {
    if (Clock::now() >= options_.deadline) throw missing_ranks_error();
    poll_interrupt(options_);
    poll_once(other_fd, std::min(options_.deadline, Clock::now() + kInterruptPeriod));
    drop_unauthenticated();
  }

  void poll_once(int other_fd, Deadline until) {
    std::vector<pollfd> entries{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                                {.fd = other_fd, .events = POLLIN, .revents = 0}};
    for (const PendingConnection& connection : connections_)
      entries.push_back({.fd = connection.socket.get(), .events = POLLIN, .revents = 0});
    if (::poll(entries.data(), entries.size(), poll_timeout(until)) < 0) return;
    for (std::size_t i = 2; i < entries.size(); ++i)
      if (entries[i].revents != 0) advance(connections_[i - 2]);
    std::erase_if(connections_,
                  [](const PendingConnection& connection) { return !connection.socket; });
    if (entries[0].revents != 0) accept_connection();
  }

  void accept_connection() {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
      std::this_thread::sleep_for(milliseconds(10));  // out of descriptors: strangers will time out
      return;
    }
    PendingConnection connection{.socket = std::move(socket),
                                 .challenge = random_digest(),
                                 .handshake_deadline = deadline_after(kHandshakeTime),
                                 .local_peer = {}};
    try {
      send_packet(connection.socket.get(), Challenge{connection.challenge},
                  connection.handshake_deadline);
      connections_.push_back(std::move(connection));
    } catch (const Error&) {
      // It has gone again; whoever it was, it can come back.
    }
  }

  /// Abstract sockets are open to every user of the machine: one that says nothing, or opens very
  /// many connections, must not keep the ranks out.
  void drop_unauthenticated() {
    const auto now = Clock::now();
    std::erase_if(connections_, [&](const PendingConnection& g) {
      return !g.authenticated && now >= g.handshake_deadline;
    });
    for (auto it = connections_.begin();
         connections_.size() > kMaxUnauthenticated + self_.size && it != connections_.end();)
      it = it->authenticated ? it + 1 : connections_.erase(it);  // the oldest first
  }

  /// Takes the one packet that is there. Whoever breaks the protocol before it has authenticated
  /// itself is a stranger and is dropped; the meeting goes on.
  void advance(PendingConnection& connection) {
    if (connection.authenticated) return receive_peer_info(connection);
    try {
      check_proof(connection);
    } catch (const Error& error) {
      if (connection.authenticated) throw;  // no stranger
      if (!std::exchange(warned_, true))
        log_warning(formatted("a stranger at the meeting point was dropped: {}", error.what()),
                    self_.rank);
      connection.socket.reset();
    }
  }

  void check_proof(PendingConnection& connection) {
    const auto answer = receive_packet<Answer>(connection.socket.get(), Clock::now());
    if (!same_digest(answer.proof,
                     member_proof(options_.secret, connection.challenge, answer.number)))
      throw Error(Errc::system, "it does not know the group's secret");
    connection.authenticated = true;
    connection.said.rank = answer.rank;
    connection.said.pid = answer.pid;
    std::memcpy(connection.said.host, self_.host, sizeof connection.said.host);
    check_equal("the size of the group", self_.size, connection.said, answer.size);
    check_rank(connection);
    const Digest own_proof = host_proof(options_.secret, connection.challenge, answer.number);
    send_packet(connection.socket.get(), Counterproof{own_proof, self_.rank}, options_.deadline);
  }

  void check_rank(const PendingConnection& connection) const {
    const int rank = connection.said.rank;
    if (rank < 0 || rank >= self_.size)
      throw Error(Errc::invalid_argument,
                  formatted("{} is not one of the {} ranks of group {}", describe(connection.said),
                            self_.size, options_.group),
                  {rank});
    const bool taken =
        rank == self_.rank ||
        std::ranges::any_of(connections_, [&](const PendingConnection& other) {
          return &other != &connection && other.authenticated && other.said.rank == rank;
        });
    if (taken)
      throw Error(Errc::invalid_argument,
                  formatted("two processes of group {} call themselves rank {}; one is {}",
                            options_.group, rank, describe(connection.said)),
                  {rank});
  }

  // --- peer_infos ---

  Roster gather_peer_infos(const std::string& address) {
    HostConfig config{};
    std::strncpy(config.address, address.c_str(), sizeof config.address - 1);
    for (const PendingConnection& connection : connections_)
      if (connection.authenticated) send_packet(connection.socket.get(), config, options_.deadline);
    self_ = options_.make_peer_info(address);
    self_.host_index = host_map_->host_of(self_.rank);
    while (received_peer_infos() + 1 < ranks_here()) serve_connections(-1);
    Roster roster;
    roster.local.push_back({.peer_info = self_, .memory = {}, .process = {}});
    for (PendingConnection& connection : connections_)
      if (connection.local_peer) roster.local.push_back(std::move(*connection.local_peer));
    std::ranges::sort(roster.local, {}, [](const LocalPeer& a) { return a.peer_info.rank; });
    for (const LocalPeer& local_peer : roster.local) {
      const int rank = local_peer.peer_info.rank;
      if (!host_map_->same_host(rank, self_.rank))
        throw Error(Errc::invalid_argument,
                    formatted("two processes of group {} call themselves rank {}, on two hosts",
                              options_.group, rank),
                    {rank});
    }
    return roster;
  }

  [[nodiscard]] int received_peer_infos() const {
    return static_cast<int>(std::ranges::count_if(
        connections_, [](const PendingConnection& g) { return g.local_peer.has_value(); }));
  }

  void receive_peer_info(PendingConnection& connection) {
    try {
      if (connection.local_peer) throw Error(Errc::peer_lost, "it closed its connection");
      std::vector<Fd> fds;
      LocalPeer local_peer;
      read_peer_info(connection, local_peer.peer_info, fds);
      local_peer.memory = std::move(fds[0]);
      if (fds.size() > 1) local_peer.process = std::move(fds[1]);
      local_peer.peer_info.host_index = self_.host_index;
      connection.local_peer = std::move(local_peer);
    } catch (const Error& error) {
      if (error.code() != Errc::peer_lost) throw;
      throw Error(Errc::peer_lost,
                  formatted("{} went away while group {} was being formed",
                            describe(connection.said), options_.group),
                  {connection.said.rank});
    }
    check_agreement(connection.local_peer->peer_info);
  }

  /// Or the reason why it cannot make_peer_info itself.
  static void read_peer_info(const PendingConnection& connection, PeerInfo& peer_info,
                             std::vector<Fd>& fds) {
    throw_if_status(connection.socket.get(), Clock::now());
    peer_info = receive_packet<PeerInfo>(connection.socket.get(), Clock::now(), &fds);
    if (fds.empty()) throw Error(Errc::system, "an peer_info without memory");
  }

  void check_agreement(const PeerInfo& other) const {
    if (other.format != self_.format)
      throw Error(Errc::mismatch,
                  formatted("rank {} and {} run different builds of this library", self_.rank,
                            describe(other)),
                  {self_.rank, other.rank});
    check_equal("the size of the group", self_.size, other, other.size);
    check_equal("the first sequence number", self_.first_sequence, other, other.first_sequence);
    check_equal("CCL_CHUNK_BYTES", self_.chunk_bytes, other, other.chunk_bytes);
    check_equal("CCL_EAGER_BYTES", self_.eager_bytes, other, other.eager_bytes);
    check_equal("CCL_STAGING_BYTES", self_.staging_bytes, other, other.staging_bytes);
    check_equal("CCL_WIRE_DTYPE", name_of(static_cast<WireFormat>(self_.wire_format)), other,
                name_of(static_cast<WireFormat>(other.wire_format)));
    check_equal("the provider of libfabric", std::string(self_.provider), other,
                std::string(other.provider));
    check_equal("FI_OFI_RXM_EAGER_LIMIT", std::string(self_.eager_limit), other,
                std::string(other.eager_limit));
    // Of groups made before, with other hosts.
    const auto family = [](const PeerInfo& i) {
      return is_ipv6(i.control_address) ? "IPv6" : "IPv4";
    };
    check_equal("the kind of address in use", std::string(family(self_)), other,
                std::string(family(other)));
  }

  template <class T>
  void check_equal(const char* what, const T& mine, const PeerInfo& other, const T& theirs) const {
    if (mine == theirs) return;
    throw Error(Errc::mismatch,
                formatted("group {}: {} is {} on rank {} and {} on {}; it must be the same on all "
                          "ranks",
                          options_.group, what, mine, self_.rank, theirs, describe(other)),
                {self_.rank, other.rank});
  }

  // --- other hosts ---

  [[nodiscard]] StoreClient store_client() const {
    return store_client_for(options_, [this] {
      check_connections();
      throw_if_failure_published(
          store_client_for(options_, {}));  // as connections of another host may know
    });
  }

  /// What all hosts have to say about `round`, one after the other, through the store.
  std::vector<std::string> exchange(const char* round, const std::string& own) {
    pending_round_ = round;
    try {
      auto all = store_allgather(store_client(), round, self_.host_index, host_map_->hosts(), own);
      pending_round_ = nullptr;
      return all;
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      throw Error(Errc::timeout,
                  formatted("group {}: not all of the {} hosts have answered host {} in time",
                            options_.group, host_map_->hosts(), self_.host),
                  {self_.rank});
    }
  }

  /// The same from hosts that may have a problem: then the first one is thrown on all.
  std::vector<std::string> exchange_or_throw(const char* round, const Status& local,
                                             const std::string& own) {
    std::vector<std::string> all = exchange(round, std::string(as_bytes(local)) + own);
    for (std::string& of_host : all) {
      std::string_view rest(of_host);
      throw_if_failed(cut_packet<Status>(rest));
      of_host = rest;
    }
    if (all.size() != static_cast<std::size_t>(host_map_->hosts()))
      throw Error(Errc::system, formatted("group {}: a host has said nothing about its {}",
                                          options_.group, round));
    return all;
  }

  /// Of this host for the others.
  std::string agree_on_address() {
    AddressOffer own;
    const Status local = status_of([&] { own = options_.offer_addresses(); });
    std::vector<AddressOffer> offers;
    for (const std::string& offer : exchange_or_throw(kAddresses, local, encoded(own)))
      offers.push_back(decode_offer(offer));
    pending_round_ = kPeerInfos;
    return choose_address(offers, static_cast<std::size_t>(self_.host_index),
                          [](const std::string& to) { return source_towards(to); });
  }

  /// Of all ranks on all hosts.
  std::vector<PeerInfo> exchange_peer_infos(const Status& local,
                                            const std::vector<LocalPeer>& here) {
    std::string own;
    for (const LocalPeer& local_peer : here) own += as_bytes(local_peer.peer_info);
    std::vector<PeerInfo> everyone(static_cast<std::size_t>(self_.size));
    int count = 0;
    for (const std::string& of_host : exchange_or_throw(kPeerInfos, local, own)) {
      for (std::string_view rest(of_host); !rest.empty(); ++count) {
        const auto peer_info = cut_packet<PeerInfo>(rest);
        check_sanity(peer_info);
        check_agreement(peer_info);
        everyone[static_cast<std::size_t>(peer_info.rank)] = peer_info;
      }
    }
    for (int rank = 0; rank < self_.size; ++rank)
      if (everyone[static_cast<std::size_t>(rank)].rank != rank) count = -1;  // one came twice
    if (count != self_.size)
      throw Error(Errc::system, formatted("group {}: {} peer_infos of {} ranks", options_.group,
                                          count, self_.size));
    return everyone;
  }

  /// It comes out of the store, to which others may write.
  void check_sanity(const PeerInfo& other) const {
    const auto ends = [](const auto& text) { return text[sizeof text - 1] == 0; };
    if (other.rank < 0 || other.rank >= self_.size || other.host_index < 0 ||
        other.host_index >= host_map_->hosts() || !ends(other.host) ||
        !ends(other.control_address) || !ends(other.provider) || !ends(other.eager_limit) ||
        other.fabric_address_bytes > sizeof other.fabric_address)
      throw Error(Errc::system, formatted("group {}: an peer_info makes no sense", options_.group));
  }

  /// The first bad one, if any host has one.
  [[nodiscard]] Status agree_on_status(const Status& own) {
    Status common = own;
    for (const std::string& of_host : exchange("status", std::string(as_bytes(own)))) {
      std::string_view rest(of_host);
      const auto theirs = cut_packet<Status>(rest);
      if (common.good && !theirs.good) common = theirs;
    }
    if (self_.host_index == 0)
      for (const char* round : {kAddresses, kPeerInfos})
        remove_key(*options_.store, store_client().key(round));
    return common;
  }

  /// While the store is waited for: none of the connections may have gone.
  void check_connections() const {
    poll_interrupt(options_);
    for (const PendingConnection& connection : connections_) {
      char byte;
      if (connection.authenticated &&
          ::recv(connection.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        throw Error(Errc::peer_lost,
                    formatted("{} went away while group {} was being formed",
                              describe(connection.said), options_.group),
                    {connection.said.rank});
    }
  }

  // --- the end of the meeting ---

  void distribute_roster(const Roster& roster, int memory_fd, int process_fd) {
    if (self_.host_index == 0) remove_host_leaders(store_client());
    options_.accept(roster);
    send_roster_to_all(roster, memory_fd, process_fd);
  }

  /// One connection at a time: the kernel limits how many descriptors may be under way.
  void send_roster(const PendingConnection& connection, const Roster& roster, int memory_fd,
                   int process_fd) const {
    for (const PeerInfo& peer_info : roster.all)
      send_packet(connection.socket.get(), peer_info, options_.deadline,
                  descriptors_of(peer_info.rank, roster.local, memory_fd, process_fd));
    throw_if_failed(receive_packet<Status>(connection.socket.get(), options_.deadline));
  }

  void send_roster_to_all(const Roster& roster, int memory_fd, int process_fd) const {
    for (const PendingConnection& connection : connections_) {
      if (!connection.local_peer) continue;
      try {
        send_roster(connection, roster, memory_fd, process_fd);
      } catch (const Error& error) {
        if (!error.ranks().empty()) throw;  // it says so itself
        throw Error(error.code(),
                    formatted("{} went away while group {} was being formed: {}",
                              describe(connection.said), options_.group, error.what()),
                    {connection.said.rank});
      }
    }
  }

  [[nodiscard]] std::vector<int> descriptors_of(int rank, const std::vector<LocalPeer>& here,
                                                int memory_fd, int process_fd) const {
    const auto found = std::ranges::find(
        here, rank, [](const LocalPeer& local_peer) { return local_peer.peer_info.rank; });
    if (found == here.end()) return {};
    const bool mine = rank == self_.rank;
    std::vector<int> fds{mine ? memory_fd : found->memory.get()};
    const int process = mine ? process_fd : found->process.get();
    if (process >= 0) fds.push_back(process);
    return fds;
  }

  void announce(const Status& status) const noexcept {
    for (const PendingConnection& connection : connections_) {
      if (!connection.authenticated) continue;
      try {
        send_packet(connection.socket.get(), status, deadline_after(kHandshakeTime));
      } catch (const std::exception&) {
        // It is gone: then it needs no status.
      }
    }
  }

  /// Everyone leaves a key when it comes.
  [[nodiscard]] bool has_joined(int rank) const {
    try {
      static_cast<void>(options_.store->get(rank_key(rank), milliseconds(0)));
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  [[nodiscard]] Error missing_ranks_error() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < self_.size; ++rank)
      if (!has_joined(rank)) ranks.push_back(rank);
    if (ranks.empty())
      return {Errc::timeout,
              formatted("group {}: all {} ranks have come, but not all have finished meeting the "
                        "others in time",
                        options_.group, self_.size)};
    return {Errc::timeout,
            formatted("group {}: rank{} {} did not arrive in time; {} of {} are here",
                      options_.group, ranks.size() == 1 ? "" : "s", joined(ranks),
                      self_.size - static_cast<int>(ranks.size()), self_.size),
            ranks};
  }

  static constexpr milliseconds kHandshakeTime{2000};
  static constexpr std::size_t kMaxUnauthenticated = 64;
  static constexpr const char* kAddresses = "addresses";
  static constexpr const char* kPeerInfos = "peer_infos";

  const RendezvousOptions& options_;
  Fd listener_;
  PeerInfo self_;
  std::vector<PendingConnection> connections_;
  std::optional<HostMap> host_map_;      // once all have said where they are
  const char* pending_round_ = nullptr;  // the round on which other hosts wait for this one
  bool warned_ = false;
};

/// The rank of the host; none if it went away meanwhile: another one may take its place.
std::optional<int> authenticate(int socket, const RendezvousOptions& options) {
  try {
    await_packet(socket, options, options.deadline);
    const auto challenge = receive_packet<Challenge>(socket, options.deadline);
    const Digest own = random_digest();
    const Digest proof = member_proof(options.secret, challenge.number, own);
    send_packet(socket, Answer{own, proof, options.rank, options.size, ::getpid()},
                options.deadline);
    await_packet(socket, options, options.deadline);
    throw_if_status(socket, options.deadline);
    const auto counter = receive_packet<Counterproof>(socket, options.deadline);
    if (same_digest(counter.proof, host_proof(options.secret, challenge.number, own)))
      return counter.rank;
  } catch (const Error& error) {
    if (error.code() != Errc::peer_lost) throw;
    return std::nullopt;
  }
  throw Error(Errc::system, "the meeting point does not know the group's secret");
}

void report_failure_to_host(int socket, Deadline deadline, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    send_packet(socket, failure_status(error), deadline);
    throw;
  }
}

/// One rank of the table, or the end of the meeting.
void receive_roster_entry(int socket, const RendezvousOptions& options, Roster& roster,
                          Deadline deadline) {
  await_packet(socket, options, deadline);
  throw_if_status(socket, deadline);
  LocalPeer local_peer;
  std::vector<Fd> fds;
  local_peer.peer_info = receive_packet<PeerInfo>(socket, deadline, &fds);
  roster.all.push_back(local_peer.peer_info);
  if (fds.empty()) return;  // on another host
  local_peer.memory = std::move(fds[0]);
  if (fds.size() > 1) local_peer.process = std::move(fds[1]);
  roster.local.push_back(std::move(local_peer));
}

void send_own_peer_info(int socket, const RendezvousOptions& options, int host_rank, int memory_fd,
                        int process_fd, Deadline handshake_deadline) {
  StoreClient store_client = store_client_for(options, [&] {
    poll_interrupt(options);
    if (wait_readable(socket, Clock::now())) throw_if_status(socket, handshake_deadline);
  });
  store_client.deadline = handshake_deadline;  // the host says who is missing
  publish_host_leader(store_client, options, host_rank);
  await_packet(socket, options, handshake_deadline);
  throw_if_status(socket, handshake_deadline);
  const auto config = receive_packet<HostConfig>(socket, handshake_deadline);
  std::vector<int> fds{memory_fd};
  if (process_fd >= 0) fds.push_back(process_fd);
  report_failure_to_host(socket, handshake_deadline, [&] {
    send_packet(socket, options.make_peer_info(config.address), handshake_deadline, fds);
  });
}

/// Other hosts wait for what the one that went away owed them.
void try_publish_failure(const RendezvousOptions& options, const Error& reason) noexcept {
  try {
    publish_failure(store_client_for(options, {}), failure_status(reason));
  } catch (const std::exception&) {
    // Then they find out by themselves.
  }
}

/// If the host said why before it went away.
void throw_pending_status(int socket) {
  PeerInfo skipped;
  while (wait_readable(socket, Clock::now())) {
    throw_if_status(socket, Clock::now());
    if (length_of_next_packet(socket) != sizeof skipped) return;
    skipped = receive_packet<PeerInfo>(socket, Clock::now());
  }
}

void join(const RendezvousOptions& options, Fd socket, int host_rank, int memory_fd,
          int process_fd) {
  // The host waits until the deadline for the others; allow it the time to say who is missing.
  const Deadline handshake_deadline =
      deadline_after(time_left(options.deadline) + milliseconds(2000));
  try {
    send_own_peer_info(socket.get(), options, host_rank, memory_fd, process_fd, handshake_deadline);
    Roster roster;
    for (int i = 0; i < options.size; ++i)
      receive_roster_entry(socket.get(), options, roster, handshake_deadline);
    report_failure_to_host(socket.get(), handshake_deadline, [&] { options.accept(roster); });
    send_packet(socket.get(), Status{}, handshake_deadline);
    await_packet(socket.get(), options, handshake_deadline);
    throw_if_failed(receive_packet<Status>(socket.get(), handshake_deadline));
  } catch (const Error& error) {
    // A status names ranks; only the socket itself fails without one.
    const bool socket_failed =
        error.ranks().empty() && (error.code() == Errc::peer_lost || error.code() == Errc::timeout);
    if (!socket_failed) throw;
    throw_pending_status(socket.get());
    const Error reason(error.code(),
                       formatted("group {}: rank {} (host {}), where the ranks of its host meet, "
                                 "went away: {}",
                                 options.group, host_rank, host_name(), error.what()),
                       {host_rank});
    try_publish_failure(options, reason);
    throw reason;
  }
}

}  // namespace

std::string host_name() {
  char name[64] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

namespace {

std::string secret_of_rank_0(Store& store, int rank, Deadline deadline) {
  try {
    return store.get(kSecretKey, time_left(deadline));
  } catch (const Error& error) {
    if (error.code() != Errc::timeout) throw;
    throw Error(Errc::timeout,
                formatted("rank {} has waited in vain for rank 0: it has not come, or has made the "
                          "group without this process, because another one is rank {} too",
                          rank, rank),
                {0});
  }
}

}  // namespace

std::string agree_on_secret(Store& store, int rank, const std::string& secret_file,
                            Deadline deadline) {
  store.set(rank_key(rank), formatted("host {}, pid {}", host_name(), ::getpid()));
  const std::string from_file = secret_file.empty() ? "" : contents_of(secret_file);
  if (rank == 0) {
    const std::string fresh = to_hex(random_digest());
    store.set(kSecretKey, fresh + check_of(whole_secret(from_file, fresh)));
  }
  const std::string stored = secret_of_rank_0(store, rank, deadline);
  std::string secret = whole_secret(from_file, stored.substr(0, kSecretDigits));
  if (stored.substr(std::min(stored.size(), kSecretDigits)) != check_of(secret))
    throw Error(Errc::invalid_argument,
                formatted("rank {} (host {}) and rank 0 have different secrets: CCL_SECRET_FILE "
                          "must name a file with the same contents on all hosts, or none",
                          rank, host_name()),
                {rank});
  return secret;
}

void remove_rendezvous_keys(Store& store, int rank) noexcept {
  remove_key(store, rank_key(rank));
  if (rank == 0) remove_key(store, kSecretKey);
}

void remove_failed_rendezvous_keys(Store& store, int rank) noexcept {
  // The ranks' own keys stay: they tell others why the meeting failed.
  if (rank == 0) remove_key(store, kSecretKey);
}

std::string describe(const PeerInfo& peer_info) {
  return formatted("rank {} (host {}, pid {})", peer_info.rank, peer_info.host, peer_info.pid);
}

void rendezvous(const RendezvousOptions& options, int memory_fd, int process_fd) {
  if (options.size == 1) {
    Roster alone;
    alone.local.resize(1);
    alone.local.front().peer_info = options.make_peer_info(/*address=*/"");
    alone.all.push_back(alone.local.front().peer_info);
    return options.accept(alone);
  }
  const std::string name = socket_name(options.secret);
  while (Clock::now() < options.deadline) {
    poll_interrupt(options);
    if (Fd listener = listen_on(name))
      return LocalServer(options, std::move(listener)).run(memory_fd, process_fd);
    if (Fd socket = connect_to(name))
      if (const auto host = authenticate(socket.get(), options))
        return join(options, std::move(socket), *host, memory_fd, process_fd);
    std::this_thread::sleep_for(milliseconds(1));  // between the host's bind and its listen
  }
  throw Error(
      Errc::timeout,
      formatted("group {}: nobody answered at the meeting point of this host", options.group));
}

}  // namespace tccl
