// The NetworkChannel of a group over libfabric.
//
// Every message carries the sender's OpRecord, so that a receiver detects that two ranks called
// different operations.
// Thread safety: one operation at a time, on one thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "base/wait.h"
#include "operation/operation_log.h"
#include "transport/membership.h"
#include "transport/network_channel.h"
#include "transport/ofi/network.h"
#include "transport/ofi/sends_in_flight.h"

namespace tccl::ofi {

class OfiChannel final : public NetworkChannel {
 public:
  using AlgorithmName = const char* (*)(std::uint8_t index);
  struct Options {
    std::vector<RankAddress> addresses;  // by rank
    std::uint32_t own_group_tag = 0;
    const OperationLog* log = nullptr;  // of this rank; outlives the channel
    AlgorithmName algorithm_name = nullptr;
    std::function<void()> check_interrupt;
    /// The error if the operation needs a rank that is lost, whichever rank it waits for.
    std::function<std::optional<Error>()> find_lost_rank;
  };
  OfiChannel(Network& network, Membership& membership, Options options);

  [[nodiscard]] int rank() const noexcept override { return membership_.rank(); }
  [[nodiscard]] const HostMap& host_map() const noexcept override { return membership_.host_map(); }
  [[nodiscard]] WireFormat wire_format() const noexcept override { return record_.wire_format; }
  [[nodiscard]] MessagePtr acquire() override { return network_.acquire_buffer(); }
  void send(const MessagePtr& message, std::size_t bytes, std::span<const int> to) override;
  [[nodiscard]] MessagePtr post_receive(int from) override;
  const std::byte* await(const MessagePtr& message, std::size_t bytes) override;
  [[nodiscard]] std::size_t received_bytes(const MessagePtr& message) override;
  void flush(std::size_t at_most) override;

  /// Brackets one operation, as on the board. The log contains `record` already.
  void begin(const OpRecord& record, std::optional<Deadline> deadline,
             std::chrono::milliseconds timeout);
  /// Does not wait for sends in flight.
  void end() { remove_completed(); }
  [[nodiscard]] bool has_sends_in_flight() const noexcept { return !sends_in_flight_.empty(); }
  /// Waits until all messages were sent or their receivers have departed or died, at most until the
  /// deadline.
  void close(Deadline deadline) noexcept;

 private:
  struct Counts {
    std::uint64_t sent = 0;
    std::uint64_t receives_posted = 0;
  };
  [[nodiscard]] Counts& counts(int rank) { return counts_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const RankAddress& address(int rank) const {
    return addresses_[static_cast<std::size_t>(rank)];
  }
  /// Waits for ready(). `message_number`: the message of that rank that is waited for, if it is a
  /// receive. Throws if the group fails, the rank is lost, or the operation times out.
  void wait(int rank, std::optional<std::uint64_t> message_number, FunctionRef<bool()> ready);
  void check_wait(int rank, std::optional<std::uint64_t> message_number,
                  std::optional<Clock::time_point>& lost_since);
  void check_for_interrupt(Clock::time_point now);
  [[nodiscard]] Error timeout_error(int rank, bool receives) const;
  void remove_completed();
  bool try_post(int rank, const char* what, FunctionRef<bool()> post);
  [[noreturn]] void throw_send_or_receive_error(int rank, const char* what,
                                                const std::string& reason);
  void check_record(int from, const OpRecord& theirs) const;
  [[nodiscard]] std::string operation() const;

  Network& network_;
  Membership& membership_;
  std::vector<RankAddress> addresses_;
  std::uint32_t own_group_tag_;
  const OperationLog& log_;
  AlgorithmName algorithm_name_;
  std::function<void()> check_interrupt_;
  std::function<std::optional<Error>()> find_lost_rank_;
  std::vector<Counts> counts_;
  SendsInFlight sends_in_flight_;
  OpRecord record_;
  std::optional<Deadline> deadline_;
  std::optional<Clock::time_point> failed_since_;  // the group has failed in a later operation
  std::chrono::milliseconds timeout_{0};
  Clock::time_point next_interrupt_check_;
};

}  // namespace tccl::ofi
