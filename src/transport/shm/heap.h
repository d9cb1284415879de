// Memory for tensors that every rank of this host can reach, so that collectives on them need not
// copy them into slots. Part of the arena, which the peers map anyway. Thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "transport/shm/arena.h"

namespace tccl::shm {

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  explicit Heap(std::shared_ptr<Arena> arena);

  /// Page-aligned, its contents undefined. Goes back when the last owner lets go of it, which may
  /// be after the end of the context. Throws Error{system} if there is no room.
  std::shared_ptr<void> allocate(std::size_t bytes);

  /// The offset at which the peers find this memory, if all of it is theirs to find.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* begin, std::size_t bytes) const;

  /// For the output of an operation that failed: puts private pages with the same contents under
  /// the whole pages of a range, so that peers that are late write to the pages that were there.
  /// Those, and if the system refuses also these, are kept from others until the acknowledged
  /// handle is let go. The memory has no offset any more.
  std::shared_ptr<const void> detach(std::byte* begin, std::size_t bytes);

  /// Freed blocks that are kept for the next allocation go back to the arena.
  void give_back_cache() noexcept;

 private:
  class Detached;
  std::optional<Lease> take_from_cache(std::size_t bytes);
  void release(const Lease& block) noexcept;
  void give_back(const Lease& block) noexcept;
  bool give_back_but_detached(const Lease& block);
  [[nodiscard]] std::shared_ptr<Detached> detached_in(std::size_t begin, std::size_t end) const;

  const std::shared_ptr<Arena> arena_;
  const std::size_t cached_at_most_;
  const pid_t owner_;  // in a forked child nothing here may be touched
  mutable std::mutex mutex_;
  std::multimap<std::size_t, Lease> cache_;  // by size; with their pages, which cost a fault each
  std::size_t cached_bytes_ = 0;
  std::map<std::size_t, std::shared_ptr<Detached>> detached_;  // by offset; they do not overlap
  std::atomic<bool> any_detached_{false};                      // ever
};

}  // namespace tccl::shm
