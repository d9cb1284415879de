// The board over shared memory.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "transport/board.h"
#include "transport/shm/group.h"

namespace tccl::shm {

class ShmBoard final : public Board {
 public:
  /// The board does not know the algorithms, but its messages name them.
  using AlgorithmName = const char* (*)(std::uint8_t index);
  /// `poll_interrupt` may be empty; see Context::Options.
  ShmBoard(Group& group, AlgorithmName algorithm_name, std::function<void()> poll_interrupt);

  [[nodiscard]] int rank() const noexcept override { return group_.rank(); }
  [[nodiscard]] int size() const noexcept override { return group_.size(); }
  [[nodiscard]] std::size_t area_bytes() const noexcept override {
    return group_.layout().area_bytes;
  }
  [[nodiscard]] std::size_t chunk_bytes() const noexcept override {
    return group_.layout().chunk_bytes;
  }
  Slot open_step() override;
  void post() override;
  PeerSlot await(int peer, std::uint32_t step) override;
  [[nodiscard]] double factor(int rank) const override;

  /// Brackets one operation. `call` needs no sequence number and no chain yet.
  void begin(const OpRecord& call, Deadline deadline, std::chrono::milliseconds timeout);
  void end() noexcept;
  [[nodiscard]] std::uint32_t sequence() const noexcept { return record_.sequence; }
  /// "allreduce #812 of group tp"
  [[nodiscard]] std::string operation() const override;

 private:
  /// What this rank knows of a peer, so that it need not look again.
  struct View {
    Position seen = 0;
    std::uint32_t agreed = 0;  // the last operation for which records were compared
    std::uint32_t heartbeat = 0;
    Clock::time_point heartbeat_changed;
  };

  bool has_reached(int peer, Position target);
  void wait_for(int peer, Position target);
  bool must_give_up(int peer);
  void check_agreement(int peer);
  void watch_heartbeats();
  std::byte* slot_of(int rank, std::uint32_t step) const;

  [[noreturn]] void throw_disagreement(int peer, std::uint32_t sequence) const;
  [[nodiscard]] Error explain(int peer, Position target) const;
  [[nodiscard]] Error explain_timeout(Position target) const;
  [[nodiscard]] std::string ranks_in_operation() const;
  [[nodiscard]] Position position_seen(int peer) const;

  Group& group_;
  AlgorithmName algorithm_name_;
  std::function<void()> poll_interrupt_;
  std::vector<View> views_;
  OpRecord record_;           // of the current operation
  std::uint32_t step_ = 0;    // steps posted in it
  std::uint64_t base_ = 0;    // steps posted in all operations before
  Position free_at_[kSlots];  // a slot is free once every peer has reached this position
  Deadline deadline_;
  std::chrono::milliseconds timeout_{0};
  Clock::time_point next_interrupt_poll_;
};

}  // namespace tccl::shm
