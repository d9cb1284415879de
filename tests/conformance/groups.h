// The sub-communicators of a run: their expected members, computed without the library, and the
// communicators that split() returns. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cases.h"
#include "collective_run.h"
#include "tccl/tccl.h"

namespace conformance {

/// World ranks of every group of the case, each in the order of the group's ranks.
std::vector<std::vector<int>> groups_of(std::uint64_t seed, const Case& one, int world_size);

class Groups {
 public:
  Groups(std::uint64_t seed, std::shared_ptr<tccl::Communicator> world);

  /// The group in which this rank runs the case, if any. For Members::fresh this calls split().
  std::optional<Group> group_for(const Case& one);
  void close() noexcept;

 private:
  std::optional<Group> made_by_split(const Case& one);

  std::uint64_t seed_;
  std::shared_ptr<tccl::Communicator> world_;
  std::map<Members, Group> kept_;
};

}  // namespace conformance
