// What a rank publishes about itself during the rendezvous, and the checks of what others publish.
// Thread safety: a value and pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/crypto.h"
#include "tccl/error.h"

namespace tccl {

/// Sent as bytes between processes of one build.
struct PeerInfo {
  /// Raised by hand when this struct, the region or a message changes.
  std::uint64_t abi_version = 0x7463636c'00000009;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  std::uint32_t first_sequence = 0;
  Bytes32 memory_id{};
  Bytes32 token{};
  std::uint64_t memory_bytes = 0;
  std::uint64_t region_offset = 0;  // of the group's region in that memory
  std::uint64_t chunk_bytes = 0;    // settings that must be the same on all ranks
  std::uint64_t eager_bytes = 0;
  std::uint64_t staging_bytes = 0;
  std::uint64_t cpus_digest = 0;  // of its affinity mask: ranks with equal digests share their CPUs
  std::uint64_t limiting_cgroup = 0;  // CpuQuota::cgroup; 0: none
  char host[64] = {};
  // --- for other hosts; unused on a single host ---
  std::int32_t host_index = 0;  // hosts are numbered in the order of their first ranks
  std::uint32_t wire_format = 0;
  std::uint32_t group_tag = 0;  // in the tags of messages to this rank
  std::uint16_t control_port = 0;
  std::uint16_t endpoint_name_bytes = 0;
  char control_address[64] = {};
  char provider[32] = {};
  /// FI_OFI_RXM_EAGER_LIMIT; libfabric refuses peers with another one.
  char rxm_eager_limit[16] = {};
  unsigned char endpoint_name[128] = {};
};

/// "rank 3 (host b, pid 4711)"
std::string describe(const PeerInfo& peer_info);

/// Throws Error{mismatch} if the two ranks were given different group sizes.
void check_same_size(const std::string& group, const PeerInfo& own, const PeerInfo& other);

/// Throws Error{mismatch}, which names the difference, if the two ranks cannot be in one group:
/// other versions of this library or other settings.
void check_compatible(const std::string& group, const PeerInfo& own, const PeerInfo& other);

/// Throws Error{mismatch} if a field is out of range: other processes may write to the store. Call it
/// before the other functions.
void check_valid(const PeerInfo& received, int ranks, int hosts);

}  // namespace tccl
