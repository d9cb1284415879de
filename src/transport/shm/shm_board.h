// The board over shared memory.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "transport/board.h"
#include "transport/shm/group.h"
#include "transport/shm/heap.h"

namespace tccl::shm {

class ShmBoard final : public Board {
 public:
  /// The board does not know the algorithms, but its messages name them.
  using AlgorithmName = const char* (*)(std::uint8_t index);
  /// `poll_interrupt` may be empty; see Context::Options.
  ShmBoard(Group& group, Heap& heap, AlgorithmName algorithm_name,
           std::function<void()> poll_interrupt, BackoffPolicy backoff);

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
  void count_from_here() override { origin_ = step_; }
  [[nodiscard]] Offset offset_of(const void* memory, std::size_t bytes) const override {
    return heap_.offset_of(memory, bytes).value_or(0);
  }
  [[nodiscard]] std::byte* at(int peer, Offset offset) const override {
    return group_.peer(peer).base() + offset;
  }
  Offset publish_in_place(const void* memory, std::size_t bytes, int reader) override;
  const std::byte* read_in_place(int peer, Offset offset) override;
  void open_window(std::byte* memory, std::size_t bytes) override { window_ = {memory, bytes}; }
  void close_window() override { window_ = {}; }
  void check_alive() const override;
  [[nodiscard]] double factor(int rank) const override;
  [[nodiscard]] int global_rank(int rank) const override { return group_.global_rank(rank); }

  /// Brackets one operation. `call` needs no sequence number and no chain yet. Without a deadline
  /// it is `timeout` after the first time that this rank has to sleep.
  void begin(const OpRecord& call, std::optional<Deadline> deadline,
             std::chrono::milliseconds timeout);
  void end();
  /// Instead of end(), when the operation has failed on this rank.
  void fail() noexcept;
  [[nodiscard]] const OpRecord& record() const noexcept { return record_; }
  /// What to do while waiting for a rank of this host: data of other hosts moves only if somebody
  /// moves it.
  void set_poll_hook(std::function<void()> poll_hook) { poll_hook_ = std::move(poll_hook); }
  /// "allreduce #812 of group tp"
  [[nodiscard]] std::string operation() const override;

 private:
  /// Steps are numbered through all operations of the group, alike on all ranks.
  using Step = std::uint64_t;
  /// What this rank knows of a peer, so that it need not look again.
  struct PeerView {
    bool published_to = false;  // in this operation
    bool read_from = false;
    Step arrived = 0;          // steps before this one are there, and agree with this rank's
    std::uint32_t agreed = 0;  // the last operation for which logs were compared
    std::uint32_t heartbeat = 0;
    Clock::time_point heartbeat_changed;
  };

  [[nodiscard]] const StepLine& line_of(int rank, Step step) const {
    return group_.region(rank).steps[step % kSlots];
  }
  void wait_for(int peer, Step step);
  void ring_if_awaited(int peer);
  void acknowledge_reads();
  void await_acknowledgements();
  [[nodiscard]] bool has_acknowledged(int peer) const;
  bool wait_long(int peer, FunctionRef<bool()> arrived);
  bool must_give_up(int peer);
  void compare_logs(int peer);
  [[nodiscard]] std::uint32_t common_sequence(int peer) const;
  void watch_heartbeats();

  [[noreturn]] void throw_disagreement(int peer, std::uint32_t sequence) const;
  [[nodiscard]] Error explain(int peer, FunctionRef<bool(int)> arrived) const;
  [[nodiscard]] Error explain_timeout(FunctionRef<bool(int)> arrived) const;
  [[nodiscard]] std::string ranks_in_operation() const;
  [[nodiscard]] Position position_seen(int peer) const;

  Group& group_;
  Heap& heap_;
  AlgorithmName algorithm_name_;
  std::function<void()> poll_interrupt_;
  std::function<void()> poll_hook_;
  std::vector<PeerView> views_;
  BackoffPolicy backoff_;
  OpRecord record_;             // of the current operation
  std::uint32_t step_ = 0;      // steps posted in it
  std::uint32_t origin_ = 0;    // the step that await() calls 0
  bool any_published_ = false;  // of the views
  bool any_read_ = false;
  std::span<std::byte> window_;
  Step base_ = 0;  // steps posted in all operations before
  std::optional<Deadline> deadline_;
  std::chrono::milliseconds timeout_{0};
  Clock::time_point next_interrupt_poll_;
};

}  // namespace tccl::shm
