// ShmBoard: the board over shared memory. See transport/board.h for the protocol.
//
// The executor brackets each operation with begin() and end(); in between an algorithm posts and
// awaits steps. A rank that waits spins, yields, then sleeps on its doorbell; while it sleeps it
// checks every 4 ms for lost ranks, a mismatched operation and the deadline. Not only the awaited
// rank is checked: in an operation that needs every rank, the awaited one may be computing, or wait
// for the lost rank itself.
//
// An operation may be left after it has posted its steps (suspend) and completed later (resume), in
// the order of posting. Meanwhile others may post. The rule that a rank which posts step i has read
// all steps up to i - 2 is the executor's task then.
// Thread safety: one operation at a time, on one thread.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "health/heartbeat_watcher.h"
#include "transport/board.h"
#include "transport/shm/local_group.h"
#include "transport/shm/tensor_heap.h"

namespace tccl::shm {

class ShmBoard final : public Board {
 public:
  /// Error messages name algorithms, which this layer does not know.
  using AlgorithmName = const char* (*)(std::uint8_t index);
  /// `check_interrupt` may be empty; see Context::Options.
  ShmBoard(LocalGroup& group, TensorHeap& heap, AlgorithmName algorithm_name,
           std::function<void()> check_interrupt, BackoffPolicy backoff);

  [[nodiscard]] int local_rank() const noexcept override { return group_.local_rank(); }
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
  void reset_step_numbers() override { first_step_ = steps_; }
  [[nodiscard]] Offset offset_of(const void* memory, std::size_t bytes) const override {
    return heap_.offset_of(memory, bytes).value_or(0);
  }
  [[nodiscard]] std::byte* at(int peer, Offset offset) const override {
    return group_.process(peer).base() + offset;
  }
  Offset publish_in_place(const void* memory, std::size_t bytes, int reader) override;
  const std::byte* read_in_place(int peer, Offset offset) override;
  void declare_peer_written(std::byte* memory, std::size_t bytes) override {
    peer_written_ = {memory, bytes};
  }
  void clear_peer_written() override { peer_written_ = {}; }
  void throw_if_any_rank_failed() const override;
  [[nodiscard]] double factor(int local_rank) const override;
  [[nodiscard]] int global_rank(int local_rank) const override {
    return group_.global_rank(local_rank);
  }
  /// Of the current operation.
  [[nodiscard]] std::uint32_t sequence() const noexcept { return record_.sequence; }
  [[nodiscard]] std::string operation() const override;

  /// Begins the operation of `record`, which is in this rank's log already. Without a deadline, the
  /// operation times out `timeout` after the first time that this rank sleeps.
  void begin(const OpRecord& record, std::optional<Deadline> deadline,
             std::chrono::milliseconds timeout);
  void end();
  /// Whether open_step() would neither wait nor find a mismatch now.
  [[nodiscard]] bool can_open_step() const;
  /// An operation that has posted all its steps and has not completed.
  struct Suspended;
  /// Instead of end().
  [[nodiscard]] Suspended suspend() const;
  /// Instead of begin(); end() follows. Operations are resumed in the order in which they began.
  void resume(const Suspended& operation);
  /// Whether the ranks whose data this rank needs have posted the steps of a suspended operation.
  [[nodiscard]] bool has_arrived(const Suspended& operation) const;
  /// The error if the current operation, which needs every rank, needs a rank of this host that has
  /// died or departed.
  [[nodiscard]] std::optional<Error> find_lost_rank() const;
  /// Instead of end(), when the operation has failed on this rank.
  void fail() noexcept;
  /// What a group over several hosts adds to a wait for a rank of this host.
  struct OtherHosts {
    /// Messages to and from other hosts need a thread that makes the network progress.
    std::function<void()> progress_network;
    /// The error if the operation needs a rank of another host that is lost, else null.
    std::function<std::optional<Error>()> find_lost_rank;
  };
  void set_other_hosts(OtherHosts other_hosts) { other_hosts_ = std::move(other_hosts); }

 private:
  /// Steps are numbered through all operations of the group, identically on all ranks.
  using GlobalStep = std::uint64_t;
  /// What this rank knows about a peer.
  struct PeerView {
    bool published_to = false;  // in this operation
    bool read_from = false;
    std::uint32_t matched = 0;     // sequence number up to which the logs were compared
    GlobalStep arrived_steps = 0;  // steps before this one have arrived with a matching digest
  };

  [[nodiscard]] const StepHeader& header_of(int rank, GlobalStep global_step) const {
    return group_.region(rank).step_headers[global_step % kSlots];
  }
  /// The next step that this rank posts.
  [[nodiscard]] GlobalStep next_global_step() const { return next_step_; }
  /// The first step after those of the current operation.
  [[nodiscard]] GlobalStep end_of_operation() const { return begin_ + steps_; }
  /// Of the last operation that used the slot of the next step: a peer that has posted this step has
  /// finished reading that slot.
  [[nodiscard]] GlobalStep step_that_frees_slot() const { return next_step_ - kSlots + 2; }
  [[nodiscard]] bool has_posted_matching(int peer, GlobalStep step) const;
  [[nodiscard]] bool is_read_from(const OpRecord& record, int peer) const;
  void wait_for(int peer, GlobalStep global_step);
  void notify_if_awaited(int peer);
  void acknowledge_reads();
  void await_acknowledgements();
  [[nodiscard]] bool has_acknowledged(int peer) const;
  bool sleep_until_arrived(int peer, FunctionRef<bool()> arrived);
  bool must_give_up(int peer);
  bool may_complete_after_failure(Clock::time_point now);
  [[nodiscard]] bool has_joined(int rank) const {
    return reached(position_seen(rank), position_of(record_.sequence, 1));
  }
  [[nodiscard]] bool is_lost(int rank) const;
  [[nodiscard]] int lost_rank(int peer) const;
  void compare_logs(int peer);
  [[nodiscard]] std::uint32_t common_sequence(int peer) const;
  void update_heartbeats(Clock::time_point now);
  [[nodiscard]] Position position_seen(int peer) const;

  // --- shm_board_errors.cc ---
  [[noreturn]] void throw_mismatch(int peer, std::uint32_t sequence) const;
  [[nodiscard]] Error lost_error(int rank) const;
  [[nodiscard]] Error explain(int peer, FunctionRef<bool(int)> arrived) const;
  [[nodiscard]] const char* progress_text(int rank) const;
  [[nodiscard]] Error explain_timeout(FunctionRef<bool(int)> arrived) const;
  [[nodiscard]] std::string ranks_in_operation() const;

  LocalGroup& group_;
  TensorHeap& heap_;
  AlgorithmName algorithm_name_;
  std::function<void()> check_interrupt_;
  OtherHosts other_hosts_;       // empty functions if all ranks are on this host
  std::vector<PeerView> views_;  // by rank
  /// By rank; apart, because only a sleeping rank uses them.
  std::vector<HeartbeatWatcher> heartbeats_;
  BackoffPolicy backoff_;
  OpRecord record_;               // of the current operation
  GlobalStep begin_ = 0;          // its first step
  std::uint32_t steps_ = 0;       // steps posted in it
  std::uint32_t first_step_ = 0;  // the step that is number 0 for await()
  bool any_published_ = false;    // views_ with published_to
  bool awaits_acknowledgements_ = false;
  bool any_read_ = false;  // views_ with read_from
  std::span<std::byte> peer_written_;
  GlobalStep next_step_ = 0;  // steps posted in all operations
  std::optional<Deadline> deadline_;
  std::chrono::milliseconds timeout_{0};
  Clock::time_point next_interrupt_check_;
  std::optional<Clock::time_point> failed_since_;  // the group has failed in a later operation
};

struct ShmBoard::Suspended {
  OpRecord record;
  GlobalStep begin;
  std::uint32_t steps;
  std::chrono::milliseconds timeout;
};

}  // namespace tccl::shm
