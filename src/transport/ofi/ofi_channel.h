// The wire over libfabric.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "base/wait.h"
#include "operation/operation_log.h"
#include "transport/members.h"
#include "transport/network_channel.h"
#include "transport/ofi/network.h"

namespace tccl::ofi {

/// How to reach a rank of another host.
struct RankAddress {
  Endpoint::Peer peer = Endpoint::kAnyone;
  std::uint32_t group_id = 0;  // its own name for the group
};

class OfiChannel final : public NetworkChannel {
 public:
  using AlgorithmName = const char* (*)(std::uint8_t index);
  struct Options {
    std::vector<RankAddress> addresses;  // by rank
    std::uint32_t own_group_id = 0;
    const OperationLog* log = nullptr;  // of this rank; outlives the channel
    AlgorithmName algorithm_name = nullptr;
    std::function<void()> poll_interrupt;
  };
  OfiChannel(Network& network, Members& members, Options options);

  [[nodiscard]] int rank() const noexcept override { return members_.rank(); }
  [[nodiscard]] const HostMap& host_map() const noexcept override { return members_.host_map(); }
  [[nodiscard]] WireFormat format() const noexcept override { return record_.wire_format; }
  [[nodiscard]] MessagePtr acquire() override { return network_.acquire_buffer(); }
  void send(const MessagePtr& message, std::size_t bytes, std::span<const int> to) override;
  [[nodiscard]] MessagePtr post_receive(int from) override;
  const std::byte* await(const MessagePtr& message, std::size_t bytes) override;
  [[nodiscard]] std::size_t received_bytes(const MessagePtr& message) override;
  void flush(std::size_t at_most) override;

  /// Brackets one operation, as on the board. The log contains `record` already.
  void begin(const OpRecord& record, std::optional<Deadline> deadline,
             std::chrono::milliseconds timeout);
  /// What was sent may still be leaving.
  void end() { collect_sent(); }
  [[nodiscard]] bool has_outstanding() const noexcept { return !outgoing_.empty(); }
  /// Waits for what was sent, as long as its receivers live and at most until then.
  void close(Deadline deadline) noexcept;

 private:
  struct Counts {
    std::uint64_t sent = 0;
    std::uint64_t expected = 0;
  };
  [[nodiscard]] Counts& counts(int rank) { return counts_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const RankAddress& address(int rank) const {
    return addresses_[static_cast<std::size_t>(rank)];
  }
  /// Until it is ready; `number` is the message of that rank that is waited for, if it is one.
  void wait(int rank, std::optional<std::uint64_t> number, FunctionRef<bool()> ready);
  void throw_if_hopeless(int rank, std::optional<std::uint64_t> number,
                         std::optional<Clock::time_point>& lost_since);
  [[nodiscard]] Error timed_out(int rank, const char* why) const;
  void collect_sent();
  void check_sent(const MessageBuffer& buffer);
  bool attempt(int rank, const char* what, FunctionRef<bool()> action);
  [[noreturn]] void throw_failed(int rank, const char* what, const std::string& why);
  void check_record(int from, const OpRecord& theirs) const;
  [[nodiscard]] std::string operation() const;

  Network& network_;
  Members& members_;
  std::vector<RankAddress> addresses_;
  std::uint32_t own_group_id_;
  const OperationLog& log_;
  AlgorithmName algorithm_name_;
  std::function<void()> poll_interrupt_;
  std::vector<Counts> counts_;
  std::deque<std::shared_ptr<MessageBuffer>> outgoing_;
  OpRecord record_;
  std::optional<Deadline> deadline_;
  std::chrono::milliseconds timeout_{0};
  Clock::time_point next_interrupt_poll_;
};

}  // namespace tccl::ofi
