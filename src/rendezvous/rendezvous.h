// Where the ranks of a group find each other and exchange what they need to communicate.
//
// That two ranks share a host is authenticated, never guessed: all try to bind one abstract Unix
// socket whose name comes from the group's secret; such names reach as far as a network namespace
// does. Who wins hosts the meeting of its host; the others connect. Abstract sockets have no
// permissions, so both sides prove that they know the secret before a descriptor is sent. The store
// then tells which rank is where, the hosts exchange peer_infos through it, everyone gets
// everyone's (and the memory and pidfd of those on its own host), and the sockets are closed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/fd.h"
#include "rendezvous/address_selection.h"
#include "tccl/store.h"

namespace tccl {

/// What a rank tells about itself. Sent as bytes between processes of one build.
struct PeerInfo {
  std::uint64_t format = 0x7463636c'00000007;  // raised when this struct or the region changes
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint32_t first_sequence = 0;
  Digest memory_id{};
  Digest token{};
  std::uint64_t memory_bytes = 0;
  std::uint64_t region_offset = 0;  // of the group's region in that memory
  std::uint64_t chunk_bytes = 0;    // settings that shape the region
  std::uint64_t eager_bytes = 0;
  std::uint64_t staging_bytes = 0;
  std::uint64_t cores_digest = 0;  // of the cores it may use: whose are equal share them
  char host[64] = {};
  // --- for other hosts, if there are any ---
  std::int32_t host_index = 0;  // hosts are counted in the order of their first ranks
  std::uint32_t wire_format = 0;
  std::uint32_t group_id = 0;  // how this rank calls the group in messages that it receives
  std::uint16_t control_port = 0;
  std::uint16_t fabric_address_bytes = 0;
  char control_address[64] = {};
  char provider[32] = {};
  char eager_limit[16] = {};  // of libfabric, which refuses connections where it differs
  unsigned char fabric_address[128] = {};
};

struct LocalPeer {
  PeerInfo peer_info;
  Fd memory;
  Fd process;
};

/// Who has come, as everyone is told.
struct Roster {
  std::vector<LocalPeer> local;  // the ranks of this host, in order
  std::vector<PeerInfo> all;     // all ranks, in order
};

struct RendezvousOptions {
  Store* store;
  std::string group;   // for messages
  std::string secret;  // see agree_on_secret
  int rank;
  int size;
  Deadline deadline;
  std::function<AddressOffer()> offer_addresses;  // asked for if there are other hosts
  /// `address` is that of this host for the others; empty if there are none.
  std::function<PeerInfo(const std::string& address)> make_peer_info;
  /// Maps everyone's memory. Runs on every rank before the meeting ends; if it throws on one, the
  /// meeting fails on all.
  std::function<void(const Roster&)> accept;
  std::function<void()> poll_interrupt;  // may be empty; see Context::Options
};

/// Rank 0 makes the secret; everyone learns it from the store. Each rank also leaves its host and
/// pid there, so that a rank that cannot be met can be named.
/// If `secret_file` is named, what it contains becomes part of the secret.
std::string agree_on_secret(Store& store, int rank, const std::string& secret_file,
                            Deadline deadline);

/// Removes what agree_on_secret() stored, so that the same store can serve another group.
void remove_rendezvous_keys(Store& store, int rank) noexcept;
/// After a meeting that failed, so that the next attempt does not take its secret.
void remove_failed_rendezvous_keys(Store& store, int rank) noexcept;

/// Hands everyone's peer_infos to everyone's `accept`. Throws on every rank alike: timeout names
/// who is missing; mismatch names what differs.
void rendezvous(const RendezvousOptions& options, int memory_fd, int process_fd);

/// "rank 3 (host b, pid 4711)"
std::string describe(const PeerInfo& peer_info);

std::string host_name();

}  // namespace tccl
