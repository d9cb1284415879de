// Arena: the shared memory of this context, allocated in leases of whole pages. The ranks of this
// host map all of it, so a lease is known to them by its offset.
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

struct Lease {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class Arena {
 public:
  explicit Arena(std::size_t bytes);

  /// `give_back` is called, without a lock, when there is no room: it may free leases. Then the
  /// lease is tried once more.
  void set_reserve(std::function<void()> give_back) { give_back_reserve_ = std::move(give_back); }

  /// Page-aligned and zeroed. Throws Error{system} when the arena has no room.
  Lease lease(std::size_t bytes);
  /// One page, from a part of the arena that holds only group headers: a late member of an earlier
  /// group may still read the header at this offset, and must find a header.
  Lease lease_header();
  /// Returns the pages to the operating system.
  void give_back(const Lease& lease) noexcept;

  [[nodiscard]] std::byte* at(const Lease& lease) const { return memory_->base() + lease.offset; }
  [[nodiscard]] const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

 private:
  using FreeList = std::map<std::size_t, std::size_t>;  // offset -> bytes, neighbours merged
  Lease take(FreeList& list, std::size_t bytes);
  std::optional<Lease> try_take(FreeList& list, std::size_t bytes);

  std::shared_ptr<SharedMemory> memory_;
  std::function<void()> give_back_reserve_;
  std::mutex mutex_;
  FreeList headers_;
  FreeList data_;
};

}  // namespace tccl::shm
