// This context's shared memory, handed out in leases. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "base/shared_memory.h"

namespace tccl::shm {

struct Lease {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class Arena {
 public:
  Arena();

  /// Page-aligned and zeroed. Throws Error{system} when the address space of the arena is used up.
  Lease lease(std::size_t bytes);
  /// The pages go back to the system; nobody may touch them any more.
  void give_back(const Lease& lease) noexcept;

  [[nodiscard]] std::byte* at(const Lease& lease) const { return memory_->base() + lease.offset; }
  [[nodiscard]] const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // offset -> bytes, neighbours merged
};

}  // namespace tccl::shm
