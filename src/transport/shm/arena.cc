#include "transport/shm/arena.h"

#include <new>
#include <utility>

#include "base/format.h"
#include "health/local_process.h"
#include "tccl/error.h"

namespace tccl::shm {
namespace {

// 16,383 groups at a time with pages of 4 KiB, 1023 with pages of 64 KiB.
constexpr std::size_t kHeadersEnd = std::size_t{64} << 20;
static_assert(sizeof(ProcessPage) <= 4096);

}  // namespace

Arena::Arena(std::size_t bytes) : memory_(SharedMemory::create(round_up_to_pages(bytes))) {
  headers_[page_bytes()] = kHeadersEnd - page_bytes();  // the first page is the ProcessPage
  data_[kHeadersEnd] = memory_->bytes() - kHeadersEnd;
}

Allocation Arena::allocate(std::size_t bytes) { return take(data_, round_up_to_pages(bytes)); }
Allocation Arena::allocate_header() { return take(headers_, page_bytes()); }

Allocation Arena::take(FreeList& list, std::size_t bytes) {
  if (const auto allocation = try_take(list, bytes)) return *allocation;
  if (on_exhausted_) {
    on_exhausted_();
    if (const auto allocation = try_take(list, bytes)) return *allocation;
  }
  throw Error(Errc::system, formatted("no room for {} more bytes in {} bytes of shared memory: "
                                      "increase CCL_SHARED_BYTES",
                                      bytes, memory_->bytes()));
}

std::optional<Allocation> Arena::try_take(FreeList& list, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto it = list.begin(); it != list.end(); ++it) {
    const auto [offset, available] = *it;
    if (available < bytes) continue;
    if (available == bytes)
      list.erase(it);
    else
      replace(list, it, offset + bytes, available - bytes);
    return Allocation{offset, bytes};
  }
  return std::nullopt;
}

/// Changes an entry without allocating memory: deallocate() must not fail.
void Arena::replace(FreeList& list, FreeList::iterator entry, std::size_t offset,
                    std::size_t bytes) noexcept {
  auto node = list.extract(entry);
  node.key() = offset;
  node.mapped() = bytes;
  list.insert(std::move(node));
}

void Arena::deallocate(const Allocation& allocation) noexcept {
  const auto [offset, bytes] = allocation;
  memory_->discard(offset, bytes);
  const std::lock_guard lock(mutex_);
  FreeList& list = offset < kHeadersEnd ? headers_ : data_;
  const auto next = list.upper_bound(offset);
  const bool joins_next = next != list.end() && offset + bytes == next->first;
  const std::size_t with_next = bytes + (joins_next ? next->second : 0);
  if (next != list.begin())
    if (const auto previous = std::prev(next); previous->first + previous->second == offset) {
      previous->second += with_next;
      if (joins_next) list.erase(next);
      return;
    }
  if (joins_next) return replace(list, next, offset, with_next);
  try {
    list.emplace(offset, bytes);
  } catch (const std::bad_alloc&) {
    // The process has no memory left. The pages are free; their addresses are not used again.
  }
}

}  // namespace tccl::shm
