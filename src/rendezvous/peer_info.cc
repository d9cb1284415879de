#include "rendezvous/peer_info.h"

#include "base/format.h"
#include "rendezvous/address_selection.h"
#include "rendezvous/init_errors.h"
#include "tccl/types.h"

namespace tccl {
namespace {

/// Throws if a value that must be the same on all ranks differs between two of them.
class Comparison {
 public:
  Comparison(const std::string& group, const PeerInfo& own, const PeerInfo& other)
      : group_(group), own_(own), other_(other) {}

  template <class T>
  void check_equal(const char* what, const T& own, const T& other) const {
    if (own == other) return;
    throw init_error(group_, Errc::mismatch,
                     formatted("{} is {} on rank {} and {} on {}; it must be the same on all ranks",
                               what, own, own_.rank, other, describe(other_)),
                     {own_.rank, other_.rank});
  }

 private:
  const std::string& group_;
  const PeerInfo& own_;
  const PeerInfo& other_;
};

std::string wire_dtype(const PeerInfo& info) {
  return std::string(name_of(static_cast<WireFormat>(info.wire_format)));
}

std::string address_family(const PeerInfo& info) {
  return is_ipv6(info.control_address) ? "IPv6" : "IPv4";
}

}  // namespace

std::string describe(const PeerInfo& peer_info) {
  return formatted("rank {} (host {}, pid {})", peer_info.rank, peer_info.host, peer_info.pid);
}

void check_same_size(const std::string& group, const PeerInfo& own, const PeerInfo& other) {
  Comparison(group, own, other).check_equal("the size of the group", own.size, other.size);
}

void check_compatible(const std::string& group, const PeerInfo& own, const PeerInfo& other) {
  const Comparison c(group, own, other);
  if (other.abi_version != own.abi_version)
    throw init_error(
        group, Errc::mismatch,
        formatted("rank {} and {} run versions of this library that cannot communicate", own.rank,
                  describe(other)),
        {own.rank, other.rank});
  c.check_equal("the size of the group", own.size, other.size);
  c.check_equal("the first sequence number", own.first_sequence, other.first_sequence);
  c.check_equal("CCL_CHUNK_BYTES", own.chunk_bytes, other.chunk_bytes);
  c.check_equal("CCL_EAGER_BYTES", own.eager_bytes, other.eager_bytes);
  c.check_equal("CCL_STAGING_BYTES", own.staging_bytes, other.staging_bytes);
  c.check_equal("CCL_WIRE_DTYPE", wire_dtype(own), wire_dtype(other));
  c.check_equal("the libfabric provider", std::string(own.provider), std::string(other.provider));
  c.check_equal("FI_OFI_RXM_EAGER_LIMIT", std::string(own.rxm_eager_limit),
                std::string(other.rxm_eager_limit));
  // A process keeps the address of its first group over several hosts.
  c.check_equal("the address family", address_family(own), address_family(other));
}

void check_valid(const PeerInfo& received, int ranks, int hosts) {
  const auto is_terminated = [](const auto& text) { return text[sizeof text - 1] == 0; };
  const bool valid = received.rank >= 0 && received.rank < ranks && received.host_index >= 0 &&
                     received.host_index < hosts && is_terminated(received.host) &&
                     is_terminated(received.control_address) && is_terminated(received.provider) &&
                     is_terminated(received.rxm_eager_limit) &&
                     received.endpoint_name_bytes <= sizeof received.endpoint_name &&
                     received.wire_format <= static_cast<std::uint32_t>(WireFormat::int8);
  if (!valid) throw Error(Errc::mismatch, "a PeerInfo has a value out of range");
}

}  // namespace tccl
