#include "transport/shm/arena.h"

#include <fmt/format.h>

#include "bootstrap/liveness.h"
#include "tccl/error.h"

namespace tccl::shm {
namespace {

constexpr std::size_t kPageBytes = 4096;
/// Address space only; a page costs memory once it is touched.
constexpr std::size_t kArenaBytes = std::size_t{4} << 30;
static_assert(sizeof(LifeSign) <= kPageBytes);

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

Arena::Arena() : memory_(SharedMemory::create(kArenaBytes)) {
  free_[kPageBytes] = kArenaBytes - kPageBytes;  // the first page holds the LifeSign
}

Lease Arena::lease(std::size_t bytes) {
  const std::size_t wanted = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, available] = *it;
    if (available < wanted) continue;
    free_.erase(it);
    if (available > wanted) free_[offset + wanted] = available - wanted;
    return {offset, wanted};
  }
  throw Error(Errc::system, fmt::format("no room for {} more bytes in {} bytes of shared memory",
                                        wanted, kArenaBytes));
}

void Arena::give_back(const Lease& lease) noexcept {
  memory_->discard(lease.offset, lease.bytes);
  const std::lock_guard lock(mutex_);
  auto [it, inserted] = free_.emplace(lease.offset, lease.bytes);
  if (const auto next = std::next(it);
      next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  if (const auto previous = std::prev(it); previous->first + previous->second == it->first) {
    previous->second += it->second;
    free_.erase(it);
  }
}

}  // namespace tccl::shm
