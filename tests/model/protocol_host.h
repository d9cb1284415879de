// The ranks of one host for the explorer: each has a context of its own and maps the memory of the
// others at other addresses, as processes do. Ranks that share a process share one mapping, in which
// a rank that makes pages private would also hide them from the others.
//
//   static Host host(2);
//   Group group(host, execution);
//   execution.add_thread("rank 0", [&] { group.board(0).begin(...); ... });
//
// Thread safety: none.
#pragma once

#include <unistd.h>

#include <memory>
#include <vector>

#include "communicator/context_impl.h"
#include "communicator/executor.h"
#include "communicator/group_builder.h"
#include "model/explorer.h"
#include "transport/shm/shm_board.h"

namespace tccl::model {

class Host {
 public:
  explicit Host(int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
      contexts_.push_back(std::make_unique<ContextImpl>(Context::Options()));
    for (int rank = 0; rank < ranks; ++rank)
      for (int other = 0; other < ranks; ++other)
        mappings_.push_back(rank == other ? memory(rank) : mapped_again(*memory(other)));
  }

  [[nodiscard]] int ranks() const { return static_cast<int>(contexts_.size()); }
  [[nodiscard]] ContextImpl& context(int rank) const {
    return *contexts_[static_cast<std::size_t>(rank)];
  }
  /// The memory of `other` as `rank` has mapped it.
  [[nodiscard]] const std::shared_ptr<SharedMemory>& mapping(int rank, int other) const {
    return mappings_[static_cast<std::size_t>(rank * ranks() + other)];
  }

 private:
  [[nodiscard]] std::shared_ptr<SharedMemory> memory(int rank) const {
    return context(rank).arena().memory();
  }
  static std::shared_ptr<SharedMemory> mapped_again(const SharedMemory& memory) {
    return std::make_shared<SharedMemory>(Fd(::dup(memory.fd())), memory.bytes(), memory.id());
  }
  std::vector<std::unique_ptr<ContextImpl>> contexts_;
  std::vector<std::shared_ptr<SharedMemory>> mappings_;
};

/// What is explored: all of the ranks' memory, or only headers and slots, because accesses to
/// tensors race on purpose.
enum class Explored { everything, protocol };

/// A new group of all ranks of a host.
class Group {
 public:
  Group(const Host& host, Execution& execution, Explored explored = Explored::everything,
        std::size_t chunk_bytes = 64)
      : host_(host), layout_(shm::RegionLayout::of(host.ranks(), chunk_bytes)) {
    for (int rank = 0; rank < host.ranks(); ++rank) parts_.push_back(parts_of(rank));
    for (int rank = 0; rank < host.ranks(); ++rank) join(rank);
    for (int rank = 0; rank < host.ranks(); ++rank) share_memory_of(rank, execution, explored);
  }
  ~Group() {
    executors_.clear();
    boards_.clear();
    for (const GroupParts& parts : parts_) parts.local_group->close();
    for (const GroupParts& parts : parts_) parts.local_group->try_free();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] shm::LocalGroup& local(int rank) const { return *parts(rank).local_group; }
  [[nodiscard]] Membership& membership(int rank) const { return *parts(rank).membership; }
  [[nodiscard]] shm::TensorHeap& heap(int rank) const { return host_.context(rank).heap(); }
  /// Either the boards or the executors of a group are used.
  [[nodiscard]] shm::ShmBoard& board(int rank) { return *boards_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Executor& executor(int rank) { return *executors_[static_cast<std::size_t>(rank)]; }

 private:
  /// Sequence numbers wrap in each scenario.
  static constexpr std::uint32_t kFirstSequence = 0xffffffff;

  [[nodiscard]] const GroupParts& parts(int rank) const {
    return parts_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] GroupParts parts_of(int rank) const {
    GroupParts parts;
    parts.local_group = std::make_shared<shm::LocalGroup>(
        host_.context(rank).arena(), shm::GroupIdentity{"world", 1, kFirstSequence}, layout_);
    return parts;
  }
  void join(int rank) {
    std::vector<shm::LocalMember> members;
    std::vector<int> ranks;
    for (int other = 0; other < host_.ranks(); ++other) {
      members.emplace_back(
          std::make_shared<LocalProcess>(host_.mapping(rank, other), "host", ::getpid()),
          parts(other).local_group->region_offset());
      ranks.push_back(other);
    }
    GroupParts& own = parts_[static_cast<std::size_t>(rank)];
    own.local_group->set_members(std::move(members), ranks, rank);
    set_all_members(host_.context(rank), own, HostMap(std::vector<int>(ranks.size(), 0)), {});
    host_.context(rank).on_group_built(*own.membership, {.on_same_cpus = host_.ranks()});
    boards_.push_back(std::make_unique<shm::ShmBoard>(
        *own.local_group, heap(rank), [](std::uint8_t) { return "steps"; }, nullptr,
        BackoffPolicy{}));
    executors_.push_back(std::make_unique<Executor>(host_.context(rank), own));
  }
  void share_memory_of(int owner, Execution& execution, Explored explored) const {
    const auto* segment = host_.mapping(owner, owner)->base();
    for (int rank = 0; rank < host_.ranks(); ++rank) {
      const SharedMemory& mapping = *host_.mapping(rank, owner);
      const auto* header = reinterpret_cast<const std::byte*>(&local(rank).region(owner));
      if (explored == Explored::everything) {
        execution.share(mapping.base(), mapping.bytes(), segment);
      } else {
        execution.share(header, page_bytes(), segment);
        execution.share(local(rank).body(owner), layout_.total_bytes, segment + 1);
      }
    }
  }

  const Host& host_;
  shm::RegionLayout layout_;
  std::vector<GroupParts> parts_;
  std::vector<std::unique_ptr<shm::ShmBoard>> boards_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace tccl::model
