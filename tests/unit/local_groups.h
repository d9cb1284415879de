// A group of two ranks on this host, as each of them sees it, without contexts and threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "health/process_page.h"
#include "transport/shm/local_group.h"

namespace tccl::shm {

/// What a process of this host has once.
struct FakeProcess {
  FakeProcess() { new (arena.memory()->base()) ProcessPage(); }
  Arena arena{std::size_t{128} << 20};  // of address space
  std::shared_ptr<LocalProcess> process = std::make_shared<LocalProcess>(arena.memory(), "a", 4711);
};

using LocalGroups = std::array<std::shared_ptr<LocalGroup>, 2>;  // by rank

inline LocalGroups make_group(std::array<FakeProcess, 2>& processes, std::uint64_t group_uid) {
  LocalGroups groups;
  std::vector<LocalMember> members;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    groups[rank] =
        std::make_shared<LocalGroup>(processes[rank].arena, GroupIdentity{"tp", group_uid, 1},
                                     RegionLayout::of(2, /*chunk_bytes=*/4096));
    members.emplace_back(processes[rank].process, groups[rank]->region_offset());
  }
  for (std::size_t rank = 0; rank < 2; ++rank)
    groups[rank]->set_members(members, {0, 1}, static_cast<int>(rank));
  return groups;
}

}  // namespace tccl::shm
