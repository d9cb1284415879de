// Executor: runs the collectives of one communicator, one at a time, on the calling thread.
//
// For each operation it
//   1. chooses the algorithm,
//   2. assigns the next sequence number, computes the digest and appends the record to the log
//      of operations, which the other ranks of the host can read,
//   3. runs the algorithm on the board and, for a group over several hosts, the network channel,
//   4. marks the group as failed on all ranks if the operation throws.
//
// A small operation may be posted instead: steps 1 and 2 and this rank's contribution come at once,
// what waits for other ranks comes in complete_posted(). See docs/threads.md, "Posted operations".
//
// Thread safety: one call of run() at a time; OperationQueue guarantees that.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "communicator/context_impl.h"
#include "communicator/group_builder.h"
#include "transport/ofi/ofi_channel.h"
#include "transport/shm/shm_board.h"

namespace tccl {

class Executor {
 public:
  /// `context` and the members of `parts` must outlive it.
  Executor(ContextImpl& context, const GroupParts& parts);

  /// Runs the operation to its end, or throws its error after marking the group as failed; if an
  /// interrupt has ended it, InterruptedOperation.
  void run(const Operation& operation, Milliseconds timeout);
  /// If the body throws anything, also an invalid argument of one operation, the group fails.
  void run(const OperationList& list, Milliseconds timeout);

  /// How many operations may be posted and not complete. The board requires that a rank which posts
  /// step i has read all steps up to i - 2, and each of these operations is one step.
  static constexpr std::size_t kMaxPosted = 2;
  /// Contributes to the operation without waiting for another rank. Returns false, and has done
  /// nothing, if that is impossible: the operation is large or for several hosts, its slot is in
  /// use, or it shares memory with an operation that is posted. `operation` must stay as it is until
  /// complete_posted().
  bool try_post(const Operation& operation, Milliseconds timeout);
  [[nodiscard]] std::size_t posted() const noexcept { return posted_count_; }
  /// Whether complete_posted() would not wait now.
  [[nodiscard]] bool posted_has_arrived() const;
  /// Completes the oldest posted operation, or throws its error as run() does. Call it for all
  /// posted ones before run().
  void complete_posted();

  /// Of the last operation that was begun; call when none runs.
  [[nodiscard]] std::uint32_t last_sequence() const noexcept { return sequence_; }

  /// Waits until messages to other hosts have been sent, at most until `deadline`.
  void close(Deadline deadline) noexcept;

 private:
  /// Without a deadline, `timeout` counts from the first time that this rank sleeps.
  void run_by(std::optional<Deadline> deadline, const Operation& operation, Milliseconds timeout);
  struct Posted {
    const Operation* operation;
    const Algorithm* algorithm;
    shm::ShmBoard::Suspended state;
    Clock::time_point begin;  // if traced
  };
  [[nodiscard]] const Algorithm& select(const OpRecord& record) const;
  [[nodiscard]] bool can_post(const CollectiveTask& task, const Algorithm& algorithm);
  /// Runs `body`, then ends the operation on the board. Marks the group as failed if one throws.
  template <class Body>
  void run_marking_failure(const Body& body);
  void run_over_hosts(const Algorithm& algorithm, const OpRecord& record,
                      const CollectiveTask& task, std::optional<Deadline> deadline,
                      Milliseconds timeout);
  /// Adds sequence number, algorithm and digest, and appends the record to the log.
  void number_and_record(OpRecord& record, const Algorithm& algorithm);
  void make_channel(const GroupParts& parts);
  [[nodiscard]] bool watches_every_rank(const OpRecord& record) const;
  [[nodiscard]] std::optional<Error> find_lost_rank();
  void subscribe_to_rail();
  void log_operation(const OpRecord& record, Clock::duration duration) const;
  void fail_by_current_exception() noexcept;
  [[nodiscard]] Error error_of_current_exception();

  ContextImpl& context_;
  shm::LocalGroup& group_;
  Membership& membership_;
  OperationLog& log_;          // in this rank's region
  std::uint32_t sequence_;     // of the last operation
  std::uint64_t digest_;       // after the last operation; begins with the group_uid
  bool interrupted_ = false;   // an interrupt ends the current operation
  const Error out_of_memory_;  // made before memory is exhausted
  shm::ShmBoard board_;
  std::unique_ptr<ofi::OfiChannel> channel_;  // only for a group over several hosts
  bool subscribed_to_rail_ = false;
  std::array<Posted, kMaxPosted> posted_{};  // in the order of posting
  std::size_t posted_count_ = 0;
  std::optional<Clock::time_point> lost_since_;  // a lost rank was found in the current operation
};

}  // namespace tccl
