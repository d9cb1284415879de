#include "transport/shm/shm_link.h"

#include <cstring>
#include <new>

#include "kernels/copy.h"

namespace tccl::shm {

bool ShmLink::has_room() {
  const std::uint64_t taken =
      theirs().cells_taken.load(std::memory_order_acquire);  // pairs with take()
  return posted_ - taken < kCells;
}

void ShmLink::open_ring() {
  std::size_t offset = 0;
  ring_ = new (group_.allocate_more(CellRing::bytes(cell_bytes_), &offset)) CellRing();
  mine().ring_offset.store(offset, std::memory_order_release);  // pairs with take()
}

void ShmLink::post(const CellHeader& header, const void* payload) {
  if (ring_ == nullptr) open_ring();
  std::byte* cell = ring_->cell(posted_, cell_bytes_);
  std::memcpy(cell, &header, sizeof header);
  kernels::copy(cell + sizeof header, payload, header.payload_bytes);
  ring_->posted.store(++posted_, std::memory_order_release);  // pairs with take()
}

void ShmLink::wake_peer() {
  doorbell_fence();
  group_.region(peer_).p2p_doorbell.notify_if_sleeping();
}

bool ShmLink::take(Take each) {
  const std::uint64_t offset =
      theirs().ring_offset.load(std::memory_order_acquire);  // pairs with open_ring()
  if (offset == 0) return false;                             // the peer has not sent anything yet
  auto* ring = reinterpret_cast<CellRing*>(group_.process(peer_).base() + offset);
  const std::uint64_t posted = ring->posted.load(std::memory_order_acquire);  // pairs with post()
  if (posted == taken_) return false;
  for (; taken_ != posted; ++taken_) {
    const std::byte* cell = ring->cell(taken_, cell_bytes_);
    CellHeader header;
    std::memcpy(&header, cell, sizeof header);
    each(header, cell + sizeof header);
  }
  mine().cells_taken.store(taken_, std::memory_order_release);  // pairs with has_room()
  wake_peer();                                                  // it may wait for room in its ring
  return true;
}

// Relaxed, both: a late value only delays eager messages.
void ShmLink::return_credit(std::uint64_t bytes) {
  mine().returned_credit.fetch_add(bytes, std::memory_order_relaxed);
}

std::uint64_t ShmLink::returned_credit() const {
  return theirs().returned_credit.load(std::memory_order_relaxed);
}

}  // namespace tccl::shm
