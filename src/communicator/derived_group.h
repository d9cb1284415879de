// DerivedGroup: a group whose ranks are all in another group, the parent. They have mapped each
// other's memory and know each other's network addresses, so no rendezvous is needed: each rank
// makes its part of the group, the ranks exchange the addresses of these parts, and every rank sets
// the members. split.h exchanges them by collectives of the parent; shrink.h works without them.
//
//   DerivedGroup derived(context, parent, parent_ranks, {"tp", group_uid, 1});
//   exchange(derived.own_address());
//   GroupParts parts = derived.set_members(addresses);
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "communicator/group_builder.h"

namespace tccl {

/// Where a rank's part of the group is.
struct GroupAddress {
  std::uint64_t region_offset = 0;  // in its shared memory
  std::uint64_t group_tag = 0;      // in network messages to it; 0 if all ranks are on one host
};

class DerivedGroup {
 public:
  /// `parent_ranks`: by rank of the new group. `parent` must outlive it.
  DerivedGroup(ContextImpl& context, const GroupParts& parent, std::vector<int> parent_ranks,
               shm::GroupIdentity identity);
  ~DerivedGroup();
  DerivedGroup(const DerivedGroup&) = delete;
  DerivedGroup& operator=(const DerivedGroup&) = delete;

  [[nodiscard]] GroupAddress own_address() const;
  /// `addresses`: by rank of the new group. Call once.
  GroupParts set_members(const std::vector<GroupAddress>& addresses);

 private:
  ContextImpl& context_;
  const GroupParts& parent_;
  std::vector<int> parent_ranks_;
  GroupParts parts_;
};

}  // namespace tccl
