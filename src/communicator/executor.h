// Executor: runs the collectives of one communicator, one at a time, on the calling thread.
//
// For each operation it
//   1. chooses the algorithm,
//   2. assigns the next sequence number, computes the digest and appends the record to the log
//      of operations, which the other ranks of the host can read,
//   3. runs the algorithm on the board and, for a group over several hosts, the network channel,
//   4. marks the group as failed on all ranks if the operation throws.
//
// Thread safety: one call of run() at a time; OperationQueue guarantees that.
#pragma once

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

  /// Runs the operation to its end, or throws its error after marking the group as failed.
  void run(const Operation& operation, Milliseconds timeout);
  /// If the body throws anything, also an invalid argument of one operation, the group fails.
  void run(const OperationList& list, Milliseconds timeout);

  /// Of the last operation that was begun; call when none runs.
  [[nodiscard]] std::uint32_t last_sequence() const noexcept { return sequence_; }

  /// Waits until messages to other hosts have been sent, at most until `deadline`.
  void close(Deadline deadline) noexcept;

 private:
  /// Without a deadline, `timeout` counts from the first time that this rank sleeps.
  void run_by(std::optional<Deadline> deadline, const Operation& operation, Milliseconds timeout);
  void run_over_hosts(const Algorithm& algorithm, const OpRecord& record,
                      const CollectiveTask& task, std::optional<Deadline> deadline,
                      Milliseconds timeout);
  /// Assigns the sequence number and the digest, and appends the record to the log.
  void number_and_record(OpRecord& record);
  void make_channel(const GroupParts& parts);
  [[nodiscard]] bool watches_every_rank(const OpRecord& record) const;
  [[nodiscard]] std::optional<Error> find_lost_rank();
  void subscribe_to_rail();
  void log_operation(const OpRecord& record, Clock::duration duration) const;
  void fail_by_current_exception();

  ContextImpl& context_;
  shm::LocalGroup& group_;
  Membership& membership_;
  OperationLog& log_;         // in this rank's region
  std::uint32_t sequence_;    // of the last operation
  std::uint64_t digest_;      // after the last operation; begins with the group_uid
  bool interrupted_ = false;  // an interrupt ends the current operation
  shm::ShmBoard board_;
  std::unique_ptr<ofi::OfiChannel> channel_;  // only for a group over several hosts
  bool subscribed_to_rail_ = false;
  std::optional<Clock::time_point> lost_since_;  // a lost rank was found in the current operation
};

}  // namespace tccl
