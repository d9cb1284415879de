// This context's shared memory, handed out in leases. Thread-safe.
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

  /// Called, without a lock, when there is no room; what it gives back is then looked at once more.
  void set_reserve(std::function<void()> give_back) { give_back_reserve_ = std::move(give_back); }

  /// Page-aligned and zeroed. Throws Error{system} when the address space of the arena is used up.
  Lease lease(std::size_t bytes);
  /// One page, from a part of the arena that holds nothing but group headers: a late member of an
  /// earlier group may still look at the header that was there.
  Lease lease_header();
  /// The pages go back to the system.
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
