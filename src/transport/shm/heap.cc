#include "transport/shm/heap.h"

#include <unistd.h>

#include <algorithm>

namespace tccl::shm {
namespace {

constexpr std::size_t kPage = 4096;
/// What is kept beyond this goes back to the system.
constexpr std::size_t kCachedAtMost = std::size_t{1} << 30;

}  // namespace

/// A range of the arena whose addresses show private pages. Its own pages may be written by late
/// peers, so nobody else gets them before both the block and the failed group have let go.
class Heap::Detached {
 public:
  Detached(std::shared_ptr<Arena> arena, Lease range) : arena_(std::move(arena)), range_(range) {
    arena_->memory()->make_private(range_.offset, range_.bytes);
  }
  ~Detached() {
    arena_->memory()->make_shared(range_.offset, range_.bytes);
    arena_->give_back(range_);
  }
  Detached(const Detached&) = delete;
  Detached& operator=(const Detached&) = delete;
  [[nodiscard]] const Lease& range() const { return range_; }

 private:
  std::shared_ptr<Arena> arena_;
  Lease range_;
};

Heap::Heap(std::shared_ptr<Arena> arena) : arena_(std::move(arena)), owner_(::getpid()) {}

std::shared_ptr<void> Heap::allocate(std::size_t bytes) {
  bytes = std::max<std::size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  Lease block;
  if (!take_from_cache(bytes, block)) {
    block = arena_->lease(bytes);
    arena_->memory()->inherit_in_child(block.offset, block.bytes, true);
  }
  return {arena_->at(block),
          [heap = shared_from_this(), block](void* /*memory*/) { heap->release(block); }};
}

bool Heap::take_from_cache(std::size_t bytes, Lease& block) {
  const std::lock_guard lock(mutex_);
  const auto found = cache_.lower_bound(bytes);
  if (found == cache_.end() || found->first > bytes + bytes / 4) return false;
  block = found->second;
  cached_bytes_ -= block.bytes;
  cache_.erase(found);
  return true;
}

void Heap::release(Lease block) noexcept {
  if (::getpid() != owner_) return;
  const std::lock_guard lock(mutex_);
  if (any_detached_ && give_back_but_detached(block) != 0) return;
  cache_.emplace(block.bytes, block);
  cached_bytes_ += block.bytes;
  while (cached_bytes_ > kCachedAtMost) {
    const auto largest = std::prev(cache_.end());
    cached_bytes_ -= largest->first;
    arena_->memory()->inherit_in_child(largest->second.offset, largest->second.bytes, false);
    arena_->give_back(largest->second);
    cache_.erase(largest);
  }
}

/// If parts of the block are detached: gives the rest of it back. Returns the number of parts.
std::size_t Heap::give_back_but_detached(const Lease& block) {
  const auto first = detached_.lower_bound(block.offset);
  const auto last = detached_.lower_bound(block.offset + block.bytes);
  if (first == last) return 0;
  std::size_t parts = 0;
  std::size_t begin = block.offset;
  const auto give_back_up_to = [&](std::size_t end) {
    if (begin == end) return;
    arena_->memory()->inherit_in_child(begin, end - begin, false);
    arena_->give_back({begin, end - begin});
  };
  for (auto part = first; part != last; ++part, ++parts) {
    give_back_up_to(part->first);
    begin = part->first + part->second->range().bytes;
  }
  give_back_up_to(block.offset + block.bytes);
  detached_.erase(first, last);
  return parts;
}

std::optional<std::uint64_t> Heap::place_of(const void* begin, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const auto base = reinterpret_cast<std::uintptr_t>(arena_->memory()->base());
  if (address < base || address - base >= arena_->memory()->bytes()) return std::nullopt;
  const std::size_t offset = address - base;
  if (any_detached_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    const auto next = detached_.lower_bound(offset + bytes);
    if (next != detached_.begin()) {
      const Lease& before = std::prev(next)->second->range();
      if (before.offset + before.bytes > offset) return std::nullopt;
    }
  }
  return offset;
}

std::shared_ptr<const void> Heap::detach(std::byte* begin, std::size_t bytes) {
  const auto from = static_cast<std::size_t>(begin - arena_->memory()->base());
  const std::size_t first = (from + kPage - 1) / kPage * kPage;
  const std::size_t end = (from + bytes) / kPage * kPage;
  if (first >= end) return nullptr;
  const std::lock_guard lock(mutex_);
  auto detached = std::make_shared<Detached>(arena_, Lease{first, end - first});
  detached_[first] = detached;
  any_detached_.store(true, std::memory_order_release);  // pairs with place_of()
  return detached;
}

}  // namespace tccl::shm
