// Arena: the shared memory of this context, allocated in whole pages. The ranks of this host map
// all of it, so they know an allocation by its offset.
// Thread safety: every method may be called from any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/shared_memory.h"

namespace tccl::shm {

struct Allocation {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class Arena {
 public:
  explicit Arena(std::size_t bytes);

  /// Called without a lock when there is no room; it may free memory. Then the allocation is tried
  /// once more.
  void set_on_exhausted(std::function<void()> on_exhausted) {
    on_exhausted_ = std::move(on_exhausted);
  }

  /// Page-aligned and zeroed. Throws Error{system} when the arena has no room.
  Allocation allocate(std::size_t bytes);
  /// One page, from a part of the arena that holds only region headers: a late member of an earlier
  /// group may still read the header at this offset, and must find a header.
  Allocation allocate_header();
  /// Returns the pages to the operating system.
  void deallocate(const Allocation& allocation) noexcept;

  [[nodiscard]] std::byte* at(const Allocation& allocation) const {
    return memory_->base() + allocation.offset;
  }
  [[nodiscard]] const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

 private:
  using FreeList = std::map<std::size_t, std::size_t>;  // offset -> bytes, neighbours merged
  Allocation take(FreeList& list, std::size_t bytes);
  std::optional<Allocation> try_take(FreeList& list, std::size_t bytes);
  static void replace(FreeList& list, FreeList::iterator entry, std::size_t offset,
                      std::size_t bytes) noexcept;

  std::shared_ptr<SharedMemory> memory_;
  std::function<void()> on_exhausted_;
  std::mutex mutex_;
  FreeList headers_;
  FreeList data_;
};

}  // namespace tccl::shm
