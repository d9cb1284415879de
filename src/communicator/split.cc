#include "communicator/split.h"

#include <algorithm>
#include <utility>

#include "base/crypto.h"
#include "base/format.h"

namespace tccl {
namespace {

constexpr std::uint32_t kOperations = 2;  // two allgathers

/// Sent by each rank in the first allgather.
struct SplitRequest {
  int color;
  int key;
  std::uint64_t group_uid;  // of the new group, if this rank is its first
};

/// Sent by each rank in the second allgather.
struct GroupAddress {
  std::uint64_t region_offset = 0;
  std::uint64_t group_tag = 0;
};

/// A rank of the new group.
struct Member {
  int parent_rank;
  SplitRequest request;
};

template <class T>
std::vector<T> allgather_value(const OperationList::Run& run, int ranks, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(ranks));
  run(allgather(&own, all.data(), sizeof own, DType::uint8));
  return all;
}

/// The ranks with this color, in the new group's order.
std::vector<Member> members_of(int color, const std::vector<SplitRequest>& requests) {
  std::vector<Member> members;
  for (std::size_t rank = 0; rank < requests.size(); ++rank)
    if (requests[rank].color == color) members.push_back({static_cast<int>(rank), requests[rank]});
  std::ranges::stable_sort(members, {}, [](const Member& member) { return member.request.key; });
  return members;
}

class Splitter {
 public:
  Splitter(ContextImpl& context, const GroupParts& parent, std::vector<Member> members)
      : context_(context), parent_(parent), members_(std::move(members)) {}
  ~Splitter() {
    if (parts_.group_tag != 0) context_.network().release_group_tag(parts_.group_tag);
  }
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  GroupAddress make_address(const Communicator::Options& options) {
    parts_.local_group = make_region(options);
    const auto is_remote = [&](const Member& member) {
      return !parent_.membership->is_local(member.parent_rank);
    };
    if (std::ranges::any_of(members_, is_remote))
      parts_.group_tag = context_.network().allocate_group_tag();
    parts_.secret = parent_.secret;
    return {parts_.local_group->region_offset(), parts_.group_tag};
  }

  /// `addresses` by rank of the parent.
  GroupParts set_members(const std::vector<GroupAddress>& addresses) {
    std::vector<shm::LocalMember> local;
    std::vector<int> global_ranks;
    std::vector<int> hosts;
    Membership::Peers peers(members_.size());
    parts_.addresses.resize(members_.size());
    const HostMap& parent_hosts = parent_.membership->host_map();
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      const int parent_rank = members_[rank].parent_rank;
      const GroupAddress& address = addresses[static_cast<std::size_t>(parent_rank)];
      hosts.push_back(parent_hosts.host_of(parent_rank));
      if (parent_.membership->is_local(parent_rank)) {
        local.emplace_back(
            parent_.local_group->process_handle(parent_hosts.local_rank(parent_rank)),
            address.region_offset);
        global_ranks.push_back(static_cast<int>(rank));
      } else {
        peers[rank] = parent_.membership->process(parent_rank);
        parts_.addresses[rank] = {parent_.addresses[static_cast<std::size_t>(parent_rank)].fi_addr,
                                  static_cast<std::uint32_t>(address.group_tag)};
      }
    }
    const auto own = std::ranges::find(members_, parent_.membership->rank(), &Member::parent_rank);
    parts_.local_group->set_members(std::move(local), std::move(global_ranks),
                                    static_cast<int>(own - members_.begin()));
    set_all_members(context_, parts_, HostMap(hosts), peers);
    return std::exchange(parts_, {});
  }

 private:
  std::shared_ptr<shm::LocalGroup> make_region(const Communicator::Options& options) {
    try {
      return std::make_shared<shm::LocalGroup>(
          context_.arena(),
          shm::GroupIdentity{options.name, members_.front().request.group_uid,
                             options.first_sequence},
          shm::RegionLayout::of(static_cast<int>(members_.size()),
                                parent_.local_group->layout().chunk_bytes));
    } catch (const Error& error) {
      const int rank = parent_.membership->rank();
      throw Error(
          error.code(),
          formatted("split of group {}: {} cannot be in group {}: {}", parent_.membership->name(),
                    parent_.membership->who(rank), options.name, error.what()),
          {rank});
    }
  }

  ContextImpl& context_;
  const GroupParts& parent_;
  std::vector<Member> members_;
  GroupParts parts_;
};

}  // namespace

std::optional<GroupParts> split_group(ContextImpl& context, Communicator& parent,
                                      const GroupParts& parent_parts, int color, int key,
                                      const Communicator::Options& options) {
  std::optional<GroupParts> parts;
  const auto body = [&](const OperationList::Run& run) {
    const int ranks = parent.size();
    const SplitRequest own{color, key, group_uid_from(random_bytes32())};
    Splitter splitter(context, parent_parts, members_of(color, allgather_value(run, ranks, own)));
    const GroupAddress address = color >= 0 ? splitter.make_address(options) : GroupAddress();
    const std::vector<GroupAddress> addresses = allgather_value(run, ranks, address);
    if (color >= 0) parts = splitter.set_members(addresses);
  };
  parent.run(OperationList{"split", kOperations, body}, Communicator::CallOptions());
  return parts;
}

}  // namespace tccl
