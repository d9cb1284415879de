#include "groups.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "random.h"

namespace conformance {

namespace {

constexpr std::uint64_t kSplitStream = 7;

struct SplitArguments {
  int color;
  int key;
};

SplitArguments split_arguments(std::uint64_t seed, const Case& one, int rank) {
  switch (one.members) {
    case Members::world:
      return {0, 0};
    case Members::halves:
      return {rank % 2, 0};
    case Members::reversed:
      return {0, -rank};
    case Members::fresh:
      break;
  }
  Random random({seed, kSplitStream, one.index, static_cast<std::uint64_t>(rank)});
  const auto color = static_cast<int>(random.below(3)) - 1;  // a third stays outside
  const auto key = static_cast<int>(random.below(2));        // equal keys: ordered by rank
  return {color, key};
}

std::vector<int> members_of(std::uint64_t seed, const Case& one, int world_size, int color) {
  std::vector<int> members;
  for (int rank = 0; rank < world_size; ++rank) {
    if (split_arguments(seed, one, rank).color == color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return split_arguments(seed, one, a).key < split_arguments(seed, one, b).key;
  });
  return members;
}

void check_members(const Group& group, int world_rank) {
  const std::size_t size = group.world_ranks.size();
  if (static_cast<std::size_t>(group.size()) != size ||
      group.world_ranks.at(static_cast<std::size_t>(group.rank())) != world_rank) {
    throw std::logic_error("split() returned rank " + std::to_string(group.rank()) + " of " +
                           std::to_string(group.size()) + ", which is wrong");
  }
}

}  // namespace

std::vector<std::vector<int>> groups_of(std::uint64_t seed, const Case& one, int world_size) {
  std::vector<std::vector<int>> groups;
  for (const int color : {0, 1}) {
    std::vector<int> members = members_of(seed, one, world_size, color);
    if (!members.empty()) groups.push_back(std::move(members));
  }
  return groups;
}

Groups::Groups(std::uint64_t seed, std::shared_ptr<tccl::Communicator> world)
    : seed_(seed), world_(std::move(world)) {
  std::vector<int> everyone(static_cast<std::size_t>(world_->size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  kept_[Members::world] = {world_, everyone};
  for (const Members members : {Members::halves, Members::reversed}) {
    Case one;
    one.members = members;
    kept_[members] = *made_by_split(one);
  }
}

std::optional<Group> Groups::group_for(const Case& one) {
  if (one.members == Members::fresh) return made_by_split(one);
  return kept_.at(one.members);
}

std::optional<Group> Groups::made_by_split(const Case& one) {
  const auto [color, key] = split_arguments(seed_, one, world_->rank());
  tccl::Communicator::Options options;
  options.name = "split";
  auto communicator = world_->split(color, key, options);
  if ((communicator == nullptr) != (color < 0)) {
    throw std::logic_error("split() with color " + std::to_string(color) + " returned " +
                           (communicator == nullptr ? "null" : "a communicator"));
  }
  if (communicator == nullptr) return {};
  Group group{std::move(communicator), members_of(seed_, one, world_->size(), color)};
  check_members(group, world_->rank());
  return group;
}

void Groups::close() noexcept {
  for (auto& [members, group] : kept_) {
    if (members != Members::world) group.communicator->close();
  }
  world_->close();
}

}  // namespace conformance
