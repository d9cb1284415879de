#include "transport/shm/arena.h"

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
    list.erase(it);
    if (available > bytes) list[offset + bytes] = available - bytes;
    return Allocation{offset, bytes};
  }
  return std::nullopt;
}

void Arena::deallocate(const Allocation& allocation) noexcept {
  memory_->discard(allocation.offset, allocation.bytes);
  const std::lock_guard lock(mutex_);
  FreeList& list = allocation.offset < kHeadersEnd ? headers_ : data_;
  auto [it, inserted] = list.emplace(allocation.offset, allocation.bytes);
  if (const auto next = std::next(it);
      next != list.end() && it->first + it->second == next->first) {
    it->second += next->second;
    list.erase(next);
  }
  if (it == list.begin()) return;
  if (const auto previous = std::prev(it); previous->first + previous->second == it->first) {
    previous->second += it->second;
    list.erase(it);
  }
}

}  // namespace tccl::shm
