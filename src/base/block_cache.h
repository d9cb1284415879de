// BlockCache: keeps a few freed blocks of one size for the next allocation. For objects that are
// made and freed for each small operation: malloc() takes a lock if another thread freed the block.
//
//   const auto cache = std::make_shared<BlockCache>();
//   auto work = std::allocate_shared<CollectiveWork>(CachingAllocator<CollectiveWork>(cache), ...);
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace tccl {

class BlockCache {
 public:
  BlockCache() = default;
  ~BlockCache() {
    for (std::atomic<void*>& block : blocks_)
      ::operator delete(block.load(std::memory_order_relaxed));
  }
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  /// All calls pass the same size.
  void* allocate(std::size_t bytes) {
    for (std::atomic<void*>& block : blocks_)
      // Acquire: pairs with deallocate().
      if (void* cached = block.exchange(nullptr, std::memory_order_acquire)) return cached;
    return ::operator new(bytes);
  }
  void deallocate(void* memory) noexcept {
    for (std::atomic<void*>& block : blocks_) {
      void* expected = nullptr;
      // Release: pairs with allocate().
      if (block.compare_exchange_strong(expected, memory, std::memory_order_release,
                                        std::memory_order_relaxed))
        return;
    }
    ::operator delete(memory);
  }

 private:
  std::array<std::atomic<void*>, 4> blocks_{};
};

/// For std::allocate_shared, which allocates one block of one size per object.
template <class T>
class CachingAllocator {
 public:
  // NOLINTNEXTLINE(readability-identifier-naming): what std::allocator_traits asks for
  using value_type = T;
  explicit CachingAllocator(std::shared_ptr<BlockCache> cache) : cache_(std::move(cache)) {}
  template <class Other>
  CachingAllocator(const CachingAllocator<Other>& other) : cache_(other.cache()) {}

  T* allocate(std::size_t count) { return static_cast<T*>(cache_->allocate(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t /*count*/) noexcept { cache_->deallocate(memory); }
  [[nodiscard]] const std::shared_ptr<BlockCache>& cache() const { return cache_; }
  template <class Other>
  bool operator==(const CachingAllocator<Other>& other) const {
    return cache_ == other.cache();
  }

 private:
  std::shared_ptr<BlockCache> cache_;
};

}  // namespace tccl
