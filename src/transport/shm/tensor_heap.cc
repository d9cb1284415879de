#include "transport/shm/tensor_heap.h"

#include <unistd.h>

#include <algorithm>

#include "base/format.h"
#include "base/log.h"
#include "tccl/error.h"

namespace tccl::shm {
namespace {

constexpr std::size_t kCachedAtMost = std::size_t{1} << 30;

}  // namespace

/// A range of the arena whose addresses map private pages: peers do not see it any more. Late peers
/// may write to its shared pages, so those are freed only when both the block and the failed group
/// have released the range.
class TensorHeap::UnsharedRange {
 public:
  UnsharedRange(std::shared_ptr<Arena> arena, Allocation range)
      : arena_(std::move(arena)), range_(range), owner_(::getpid()) {}
  ~UnsharedRange() {
    if (::getpid() != owner_) return;
    // A range that cannot be mapped again is leaked.
    if (!is_private_ || arena_->memory()->make_shared(range_.offset, range_.bytes))
      arena_->deallocate(range_);
  }
  UnsharedRange(const UnsharedRange&) = delete;
  UnsharedRange& operator=(const UnsharedRange&) = delete;

  void make_private() {
    arena_->memory()->make_private(range_.offset, range_.bytes);
    is_private_ = true;
  }
  [[nodiscard]] const Allocation& range() const { return range_; }
  [[nodiscard]] std::size_t end() const { return range_.offset + range_.bytes; }

 private:
  std::shared_ptr<Arena> arena_;
  Allocation range_;
  pid_t owner_;
  bool is_private_ = false;
};

TensorHeap::TensorHeap(std::shared_ptr<Arena> arena)
    : arena_(std::move(arena)),
      cached_at_most_(std::min(kCachedAtMost, arena_->memory()->bytes() / 8)),
      owner_(::getpid()) {}

std::shared_ptr<void> TensorHeap::allocate(std::size_t bytes) {
  bytes = std::clamp<std::size_t>(bytes, 1, arena_->memory()->bytes());  // more never fits
  bytes = round_up_to_pages(bytes);
  std::optional<Allocation> block = take_from_cache(bytes);
  if (!block) {
    block = arena_->allocate(bytes);
    arena_->memory()->inherit_in_child(block->offset, block->bytes, true);
  }
  return {arena_->at(*block),
          [heap = shared_from_this(), block = *block](void* /*memory*/) { heap->release(block); }};
}

std::optional<Allocation> TensorHeap::take_from_cache(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = cache_.lower_bound(bytes);
  if (found == cache_.end() || found->first > bytes + bytes / 4) return std::nullopt;
  const Allocation block = found->second;
  cached_bytes_ -= block.bytes;
  cache_.erase(found);
  return block;
}

void TensorHeap::release(const Allocation& block) noexcept {
  if (::getpid() != owner_) return;
  const std::lock_guard lock(mutex_);
  try {
    // Relaxed: unshare() stores it under this mutex.
    if (any_unshared_.load(std::memory_order_relaxed) && free_except_unshared(block)) return;
    if (cached_bytes_ + block.bytes <= cached_at_most_) {
      cache_.emplace(block.bytes, block);
      cached_bytes_ += block.bytes;
      return;
    }
  } catch (const std::bad_alloc&) {  // not cached
  }
  deallocate(block);
}

void TensorHeap::free_cache() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [bytes, block] : cache_) deallocate(block);
  cache_.clear();
  cached_bytes_ = 0;
}

void TensorHeap::deallocate(const Allocation& block) noexcept {
  arena_->memory()->inherit_in_child(block.offset, block.bytes, false);
  arena_->deallocate(block);
}

/// If parts of the block are unshared, frees the rest of it; else does nothing.
bool TensorHeap::free_except_unshared(const Allocation& block) {
  const auto first = unshared_.lower_bound(block.offset);
  const auto last = unshared_.lower_bound(block.offset + block.bytes);
  if (first == last) return false;
  std::size_t begin = block.offset;
  for (auto part = first; part != last; ++part) {
    if (begin < part->first) deallocate({begin, part->first - begin});
    begin = part->second->end();
  }
  const std::size_t end = block.offset + block.bytes;
  if (begin < end) deallocate({begin, end - begin});
  unshared_.erase(first, last);
  return true;
}

std::shared_ptr<TensorHeap::UnsharedRange> TensorHeap::unshared_in(std::size_t begin,
                                                                   std::size_t end) const {
  const auto next = unshared_.lower_bound(end);
  if (next == unshared_.begin()) return nullptr;
  const auto& before = std::prev(next)->second;
  return before->end() > begin ? before : nullptr;
}

std::optional<std::uint64_t> TensorHeap::offset_of(const void* begin, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const auto base = reinterpret_cast<std::uintptr_t>(arena_->memory()->base());
  if (address < base || address - base >= arena_->memory()->bytes()) return std::nullopt;
  const std::size_t offset = address - base;
  if (any_unshared_.load(std::memory_order_acquire)) {  // pairs with unshare()
    const std::lock_guard lock(mutex_);
    if (unshared_in(offset, offset + bytes)) return std::nullopt;
  }
  return offset;
}

std::shared_ptr<const void> TensorHeap::unshare(std::byte* begin, std::size_t bytes) {
  const auto from = static_cast<std::size_t>(begin - arena_->memory()->base());
  const std::size_t first = round_up_to_pages(from);
  const std::size_t end = (from + bytes) / page_bytes() * page_bytes();
  if (first >= end) return nullptr;
  const std::lock_guard lock(mutex_);
  if (auto known = unshared_in(first, end)) return known;  // unshared by another failed group
  const auto unshared = std::make_shared<UnsharedRange>(arena_, Allocation{first, end - first});
  unshared_[first] = unshared;
  any_unshared_.store(true, std::memory_order_release);  // pairs with offset_of()
  try {
    unshared->make_private();
  } catch (const Error& error) {
    log_warning(
        formatted("late ranks may write to the tensor of a failed operation: {}", error.what()));
  }
  return unshared;
}

}  // namespace tccl::shm
