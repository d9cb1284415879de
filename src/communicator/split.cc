#include "communicator/split.h"

#include <algorithm>
#include <tuple>

#include "base/crypto.h"

namespace tccl {
namespace {

/// Sent by each rank in the first allgather.
struct SplitRequest {
  int color, key, rank, unused;
  std::uint64_t group_uid;  // of the new group, if this rank is its first
};

/// Sent by each rank in the second allgather.
struct GroupAddress {
  std::uint64_t region_offset = 0;
  std::uint64_t group_tag = 0;
};

template <class T>
std::vector<T> allgather_value(Communicator& parent, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(parent.size()));
  parent.run(allgather(&own, all.data(), sizeof own, DType::uint8));
  return all;
}

/// The requests with this color: the members of the new group, in its order of ranks.
std::vector<SplitRequest> exchange_requests(Communicator& parent, int color, int key) {
  const SplitRequest own{color, key, parent.rank(), 0, group_uid_from(random_bytes32())};
  std::vector<SplitRequest> requests = allgather_value(parent, own);
  std::erase_if(requests, [&](const SplitRequest& request) { return request.color != color; });
  std::ranges::sort(requests, {}, [](const SplitRequest& request) {
    return std::tuple(request.key, request.rank);
  });
  return requests;
}

class Splitter {
 public:
  Splitter(ContextImpl& context, const GroupParts& parent, std::vector<SplitRequest> requests)
      : context_(context), parent_(parent), requests_(std::move(requests)) {}

  GroupAddress make_region(const Communicator::Options& options) {
    try {
      parts_.local_group = std::make_shared<shm::LocalGroup>(
          context_.arena(),
          shm::GroupIdentity{options.name, requests_.front().group_uid, options.first_sequence},
          shm::RegionLayout::of(static_cast<int>(requests_.size()),
                                parent_.local_group->layout().chunk_bytes));
    } catch (const Error& error) {
      throw parent_.membership->fail(error);  // the other ranks wait for this one
    }
    const auto is_remote = [&](const SplitRequest& request) {
      return !parent_.membership->is_local(request.rank);
    };
    if (std::ranges::any_of(requests_, is_remote))
      parts_.group_tag = context_.network().allocate_group_tag();
    return {parts_.local_group->region_offset(), parts_.group_tag};
  }

  /// `addresses` by rank of the parent.
  GroupParts set_members(const std::vector<GroupAddress>& addresses) {
    std::vector<shm::LocalMember> local;
    std::vector<int> global_ranks;
    std::vector<int> hosts;
    Membership::Peers peers(requests_.size());
    parts_.addresses.resize(requests_.size());
    const HostMap& parent_hosts = parent_.membership->host_map();
    for (std::size_t rank = 0; rank < requests_.size(); ++rank) {
      const int parent_rank = requests_[rank].rank;
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
    const auto own = std::ranges::find(requests_, parent_.membership->rank(), &SplitRequest::rank);
    parts_.local_group->set_members(std::move(local), std::move(global_ranks),
                                    static_cast<int>(own - requests_.begin()));
    set_all_members(context_, parts_, HostMap(hosts), peers);
    return std::move(parts_);
  }

 private:
  ContextImpl& context_;
  const GroupParts& parent_;
  std::vector<SplitRequest> requests_;
  GroupParts parts_;
};

}  // namespace

std::optional<GroupParts> split_group(ContextImpl& context, Communicator& parent,
                                      const GroupParts& parent_parts, int color, int key,
                                      const Communicator::Options& options) {
  Splitter splitter(context, parent_parts, exchange_requests(parent, color, key));
  const GroupAddress own = color >= 0 ? splitter.make_region(options) : GroupAddress();
  const std::vector<GroupAddress> addresses = allgather_value(parent, own);
  if (color < 0) return std::nullopt;
  return splitter.set_members(addresses);
}

}  // namespace tccl
