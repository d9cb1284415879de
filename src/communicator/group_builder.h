// Building a group: the rendezvous of its ranks, and from the roster the group's parts.
//
//   BuiltGroup built = build_group(context, store, rank, size, options);
//   auto communicator = std::make_shared<CommunicatorImpl>(context, built.parts, options);
//
// split.h builds a group out of an existing one, without a rendezvous.
// Thread safety: each call is independent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "communicator/context_impl.h"
#include "tccl/communicator.h"
#include "transport/membership.h"
#include "transport/ofi/ofi_channel.h"
#include "transport/shm/local_group.h"

namespace tccl {

/// What a communicator is made of.
struct GroupParts {
  std::shared_ptr<shm::LocalGroup> local_group;  // the ranks of this host
  std::shared_ptr<Membership> membership;        // all ranks
  std::vector<ofi::RankAddress> addresses;       // by rank; used for ranks of other hosts
  std::uint32_t group_tag = 0;                   // in the tags of messages to this process
  std::shared_ptr<const void> secret;            // see ContextImpl::accept_secret()
};

struct BuiltGroup {
  GroupParts parts;
  CpuSharing sharing;
};

/// See Communicator::report_failed_start().
void report_failed_start(Store& store, int rank, int size, const Communicator::Options& options,
                         const std::string& reason) noexcept;

/// Collective over all ranks. Throws Error{timeout} that names the missing ranks.
BuiltGroup build_group(ContextImpl& context, Store& store, int rank, int size,
                       const Communicator::Options& options);

/// Sets `parts.membership` of a group whose members on this host are set.
void set_all_members(ContextImpl& context, GroupParts& parts, HostMap host_map,
                     const Membership::Peers& peers);

/// A group_uid from random or hashed bytes; never 0, which marks a freed region.
std::uint64_t group_uid_from(const Bytes32& bytes);

}  // namespace tccl
