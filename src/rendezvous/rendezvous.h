// Rendezvous of one group: every rank learns every other rank's PeerInfo.
//
//   RendezvousOptions options{.store = &store, .group = "world", .rank = 0, .size = 4, ...};
//   options.secret = agree_on_secret(options, settings.secret_file);        // secret.h
//   rendezvous(options, shared_memory.fd(), pidfd);   // every rank: options.apply_roster(roster)
//
// 1. Local: all ranks of a host try to bind the same abstract Unix socket. One succeeds, becomes
//    the coordinator of its host and accepts the others. Connecting proves that ranks share a host:
//    an abstract name is visible in one network namespace only. Abstract sockets have no
//    permissions, so a challenge-response handshake precedes any file descriptor. (local_server.h,
//    local_client.h)
// 2. Discovery: the ranks publish in the store which rank coordinates their host.
//    (host_discovery.h)
// 3. Global: the coordinators exchange addresses and the PeerInfos of their ranks through the
//    store. (host_agreement.h)
// 4. Commit: the group exists once every rank has applied the roster, that is, has mapped its local
//    peers' memory; a failure on one rank fails all. Then the sockets are closed and the store keys
//    removed.
// Thread safety: call from one thread per group.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/process_identity.h"
#include "rendezvous/address_selection.h"
#include "rendezvous/peer_info.h"
#include "tccl/store.h"

namespace tccl {

/// A rank of this host.
struct LocalPeer {
  PeerInfo peer_info;
  Fd memory;   // its shared memory
  Fd process;  // its pidfd; invalid if it has none
};

struct Roster {
  std::vector<LocalPeer> local;  // the ranks of this host, in order
  std::vector<PeerInfo> all;     // all ranks, in order
};

/// Where rank 0 accepts the connections of ExitWatchClient. Port 0: nowhere.
struct WatchAddress {
  std::string host;  // numeric
  std::uint16_t port = 0;
};

/// What rank 0 publishes of itself together with the secret.
struct RankZero {
  std::string process;  // "host b, pid 4711"
  ProcessIdentity identity;
  WatchAddress watch_address;
};

struct RendezvousOptions {
  Store* store;
  std::string group;   // name, for error messages
  std::string secret;  // of agree_on_secret()
  int rank;
  int size;
  std::chrono::milliseconds timeout;  // from the start of init, for error messages
  Deadline deadline;
  std::function<AddressOffer()> offer_addresses;  // called if there are other hosts
  /// `address` is the one that this host advertises to the others; empty if there are none.
  std::function<PeerInfo(const std::string& address)> make_peer_info;
  /// Maps the memory of all local peers. Called on every rank before rendezvous() returns; if it
  /// throws on one rank, rendezvous() throws on all.
  std::function<void(const Roster&)> apply_roster;
  std::function<void()> check_interrupt;  // may be empty; see Context::Options
  /// The process of a rank that has not joined, "rank 2 (host b, pid 4711)", if it is known and has
  /// ended; else an empty text. May be empty. Called from any thread.
  std::function<std::string(int rank)> lost_process{};
  /// Of these ranks, which have not joined, those whose processes are known and stalled, with a text
  /// such as "rank 2 (host b, pid 4711)". Takes up to a second. May be empty.
  std::function<std::vector<std::pair<int, std::string>>(const std::vector<int>& ranks)>
      stalled_processes{};
  /// Whether ranks may belong to different users. Without CCL_SECRET_FILE they may not: any user of
  /// the host can read the secret in the store.
  bool may_have_other_users = false;
  /// Set by agree_on_secret() on the other ranks. On rank 0 only `watch_address` is used.
  RankZero rank_zero{};
  /// attempt_of() the secret of this process's last rendezvous that failed (see secret.h): neither
  /// its secret nor its failure is one of this rendezvous.
  std::string last_failed_attempt{};
};

/// Throws the same error on every rank: Error{timeout} names the missing ranks, Error{mismatch}
/// what differs, Error{peer_lost} the rank that died. `exit_watch` is, on rank 0, the listener of
/// rank_zero.watch_address; it may be invalid.
void rendezvous(RendezvousOptions options, int memory_fd, int pid_fd, Fd exit_watch = {});

std::string host_name();
/// "host b, pid 4711"
std::string this_process_text();

}  // namespace tccl
