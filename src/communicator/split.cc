#include "communicator/split.h"

#include <algorithm>

#include "base/crypto.h"
#include "base/format.h"
#include "communicator/derived_group.h"

namespace tccl {
namespace {

constexpr std::uint32_t kOperations = 2;  // two allgathers

/// Sent by each rank in the first allgather.
struct SplitRequest {
  int color;
  int key;
  std::uint64_t group_uid;  // of the new group, if this rank is its first
};

template <class T>
std::vector<T> allgather_value(const OperationList::Run& run, int ranks, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(ranks));
  run(allgather(&own, all.data(), sizeof own, DType::uint8));
  return all;
}

/// The ranks with this color, in the new group's order.
std::vector<int> members_of(int color, const std::vector<SplitRequest>& requests) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < requests.size(); ++rank)
    if (requests[rank].color == color) ranks.push_back(static_cast<int>(rank));
  std::ranges::stable_sort(ranks, {},
                           [&](int rank) { return requests[static_cast<std::size_t>(rank)].key; });
  return ranks;
}

void make_part(std::optional<DerivedGroup>& derived, ContextImpl& context, const GroupParts& parent,
               const std::vector<int>& members, const shm::GroupIdentity& identity) {
  try {
    derived.emplace(context, parent, members, identity);
  } catch (const Error& error) {
    const int rank = parent.membership->rank();
    throw Error(
        error.code(),
        formatted("split of group {}: {} cannot be in group {}: {}", parent.membership->name(),
                  parent.membership->who(rank), identity.name, error.what()),
        {rank});
  }
}

}  // namespace

std::optional<GroupParts> split_group(ContextImpl& context, Communicator& parent,
                                      const GroupParts& parent_parts, int color, int key,
                                      const Communicator::Options& options) {
  std::optional<GroupParts> parts;
  const auto body = [&](const OperationList::Run& run) {
    const SplitRequest own{color, key, group_uid_from(random_bytes32())};
    const std::vector<SplitRequest> requests = allgather_value(run, parent.size(), own);
    const std::vector<int> members = members_of(color, requests);
    std::optional<DerivedGroup> derived;
    if (color >= 0)
      make_part(derived, context, parent_parts, members,
                {options.name, requests[static_cast<std::size_t>(members.front())].group_uid,
                 options.first_sequence});
    const std::vector<GroupAddress> by_parent_rank =
        allgather_value(run, parent.size(), derived ? derived->own_address() : GroupAddress());
    if (!derived) return;
    std::vector<GroupAddress> addresses;
    for (const int rank : members)
      addresses.push_back(by_parent_rank[static_cast<std::size_t>(rank)]);
    parts = derived->set_members(addresses);
  };
  parent.run(OperationList{"split", kOperations, body}, Communicator::CallOptions());
  return parts;
}

}  // namespace tccl
