#include "communicator/derived_group.h"

#include <algorithm>
#include <utility>

namespace tccl {

DerivedGroup::DerivedGroup(ContextImpl& context, const GroupParts& parent,
                           std::vector<int> parent_ranks, shm::GroupIdentity identity)
    : context_(context), parent_(parent), parent_ranks_(std::move(parent_ranks)) {
  parts_.local_group = std::make_shared<shm::LocalGroup>(
      context_.arena(), std::move(identity),
      shm::RegionLayout::of(static_cast<int>(parent_ranks_.size()),
                            parent_.local_group->layout().chunk_bytes));
  parts_.secret = parent_.secret;
  const auto is_remote = [&](int parent_rank) {
    return !parent_.membership->is_local(parent_rank);
  };
  if (std::ranges::any_of(parent_ranks_, is_remote))
    parts_.group_tag = context_.network().allocate_group_tag(parts_.local_group->group_uid());
}

DerivedGroup::~DerivedGroup() {
  if (parts_.group_tag != 0) context_.network().release_group_tag(parts_.group_tag);
}

GroupAddress DerivedGroup::own_address() const {
  return {parts_.local_group->region_offset(), parts_.group_tag};
}

GroupParts DerivedGroup::set_members(const std::vector<GroupAddress>& addresses) {
  std::vector<shm::LocalMember> local;
  std::vector<int> global_ranks;
  std::vector<int> hosts;
  Membership::Peers peers(parent_ranks_.size());
  parts_.addresses.resize(parent_ranks_.size());
  const HostMap& parent_hosts = parent_.membership->host_map();
  for (std::size_t rank = 0; rank < parent_ranks_.size(); ++rank) {
    const int parent_rank = parent_ranks_[rank];
    hosts.push_back(parent_hosts.host_of(parent_rank));
    if (parent_.membership->is_local(parent_rank)) {
      local.emplace_back(parent_.local_group->process_handle(parent_hosts.local_rank(parent_rank)),
                         addresses[rank].region_offset);
      global_ranks.push_back(static_cast<int>(rank));
    } else {
      peers[rank] = parent_.membership->process(parent_rank);
      parts_.addresses[rank] = {parent_.addresses[static_cast<std::size_t>(parent_rank)].fi_addr,
                                static_cast<std::uint32_t>(addresses[rank].group_tag)};
    }
  }
  const auto own = std::ranges::find(parent_ranks_, parent_.membership->rank());
  parts_.local_group->set_members(std::move(local), std::move(global_ranks),
                                  static_cast<int>(own - parent_ranks_.begin()));
  set_all_members(context_, parts_, HostMap(hosts), peers);
  return std::exchange(parts_, {});
}

}  // namespace tccl
