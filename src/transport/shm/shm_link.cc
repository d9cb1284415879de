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

void ShmLink::open_channel() {
  std::size_t offset = 0;
  channel_ = new (group_.lease_more(Channel::bytes(cell_bytes_), &offset)) Channel();
  mine().channel.store(offset, std::memory_order_release);  // pairs with take()
}

void ShmLink::post(const CellHeader& header, const void* payload) {
  if (channel_ == nullptr) open_channel();
  std::byte* cell = channel_->cell(posted_, cell_bytes_);
  std::memcpy(cell, &header, sizeof header);
  kernels::copy(cell + sizeof header, payload, header.payload_bytes);
  channel_->posted.store(++posted_, std::memory_order_release);  // pairs with take()
}

void ShmLink::wake_receiver() {
  ring_fence();
  group_.region(peer_).p2p_bell.ring_if_asleep();
}

bool ShmLink::take(Take each) {
  const std::uint64_t offset = theirs().channel.load(std::memory_order_acquire);
  if (offset == 0) return false;  // it has never sent to us
  auto* channel = reinterpret_cast<Channel*>(group_.peer(peer_).base() + offset);
  const std::uint64_t posted = channel->posted.load(std::memory_order_acquire);  // pairs with post
  if (posted == taken_) return false;
  for (; taken_ != posted; ++taken_) {
    const std::byte* cell = channel->cell(taken_, cell_bytes_);
    CellHeader header;
    std::memcpy(&header, cell, sizeof header);
    each(header, cell + sizeof header);
  }
  mine().cells_taken.store(taken_, std::memory_order_release);  // pairs with has_room
  wake_receiver();
  return true;
}

void ShmLink::claim_eager(std::uint64_t bytes) {
  mine().eager_matched.fetch_add(bytes, std::memory_order_relaxed);
}

std::uint64_t ShmLink::eager_claimed() const {
  return theirs().eager_matched.load(std::memory_order_relaxed);
}

}  // namespace tccl::shm
