// ShmLink: the link to a rank of this host: one CellRing in each rank's shared memory.
// Thread safety: none; used under the mutex of the P2p engine.
#pragma once

#include "transport/link.h"
#include "transport/shm/cell_ring.h"
#include "transport/shm/local_group.h"

namespace tccl::shm {

class ShmLink final : public Link {
 public:
  ShmLink(LocalGroup& group, int peer, std::size_t cell_bytes)
      : group_(group), peer_(peer), cell_bytes_(cell_bytes) {}

  [[nodiscard]] std::size_t cell_bytes() const noexcept override { return cell_bytes_; }
  [[nodiscard]] bool has_room() override;
  void post(const CellHeader& header, const void* payload) override;
  void wake_peer() override;
  void wake_progress_thread() override { group_.process(peer_).wake_progress_thread(); }
  bool take(Take each) override;
  /// P2p takes the cells before it checks for failures, and those of a local rank arrive at once.
  [[nodiscard]] bool is_drained() const override { return true; }
  void return_credit(std::uint64_t bytes) override;
  [[nodiscard]] std::uint64_t returned_credit() const override;

 private:
  void open_ring();
  [[nodiscard]] PeerCounters& mine() const {
    return group_.peer_counters(group_.local_rank(), peer_);
  }
  [[nodiscard]] PeerCounters& theirs() const {
    return group_.peer_counters(peer_, group_.local_rank());
  }

  LocalGroup& group_;
  int peer_;
  std::size_t cell_bytes_;
  CellRing* ring_ = nullptr;  // created by the first post
  std::uint64_t posted_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace tccl::shm
