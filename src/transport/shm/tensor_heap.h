// TensorHeap: memory for tensors in the arena, which every rank of this host has mapped, so that
// collectives on them need no copy into slots (Context::allocate).
//
//   std::shared_ptr<void> tensor = heap.allocate(bytes);
//   heap.offset_of(tensor.get(), bytes);                  // where peers find it
//
// Thread safety: every method may be called from any thread.
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

class TensorHeap : public std::enable_shared_from_this<TensorHeap> {
 public:
  explicit TensorHeap(std::shared_ptr<Arena> arena);

  /// Page-aligned, contents undefined. Freed with the last owner, which may outlive the context.
  /// Throws Error{system} if there is no room.
  std::shared_ptr<void> allocate(std::size_t bytes);

  /// The offset at which peers find this memory; none if it is not in the heap or is unshared.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* begin, std::size_t bytes) const;

  /// For the output of a failed operation: replaces the whole pages of a range by private pages
  /// with the same contents, so that late peers write to the shared pages, which nobody reads. The
  /// shared pages are not reused while the returned handle exists; if the system refuses to replace
  /// them, the same holds for the range itself. Unshared memory has no offset any more.
  std::shared_ptr<const void> unshare(std::byte* begin, std::size_t bytes);

  /// Returns cached blocks to the arena.
  void free_cache() noexcept;

 private:
  class UnsharedRange;
  std::optional<Allocation> take_from_cache(std::size_t bytes);
  void release(const Allocation& block) noexcept;
  void deallocate(const Allocation& block) noexcept;
  bool free_except_unshared(const Allocation& block);
  [[nodiscard]] std::shared_ptr<UnsharedRange> unshared_in(std::size_t begin,
                                                           std::size_t end) const;

  const std::shared_ptr<Arena> arena_;
  const std::size_t cached_at_most_;
  const pid_t owner_;  // a forked child must not change the heap
  mutable std::mutex mutex_;
  /// By size; still with pages, each of which costs a page fault.
  std::multimap<std::size_t, Allocation> cache_;
  std::size_t cached_bytes_ = 0;
  /// By offset; they do not overlap.
  std::map<std::size_t, std::shared_ptr<UnsharedRange>> unshared_;
  std::atomic<bool> any_unshared_{false};  // true from the first unshare() on
};

}  // namespace tccl::shm
