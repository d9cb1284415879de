// What a process has of the network, once for all its groups: one endpoint, memory for messages,
// and the control connections. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "config/settings.h"
#include "health/control_plane.h"
#include "transport/members.h"
#include "transport/network_channel.h"
#include "transport/ofi/endpoint.h"

namespace tccl::ofi {

constexpr std::uint32_t kMaxGroupId = 0xfffff;

/// Which message it is: 48 bits, because some networks have no more. A receiver's group number,
/// not the sender's: a process never gives the same one to two groups.
constexpr std::uint64_t tag_of(std::uint32_t group_id, Traffic traffic, std::uint64_t number) {
  return (std::uint64_t{group_id & kMaxGroupId} << 28) |
         (std::uint64_t{traffic == Traffic::point_to_point} << 27) | (number & 0x7ffffff);
}

/// In front of every cell: for whom it is.
struct CellAddress {
  std::uint64_t group_uid;
  std::uint32_t group_id;
  std::int32_t source;  // rank in the group
};

/// Memory for one message and the requests that use it.
class MessageBuffer final : public NetworkChannel::Message {
 public:
  /// Room for a header in front of the contents.
  static constexpr std::size_t kHeaderBytes = 64;
  static constexpr std::size_t kBytes = kHeaderBytes + NetworkChannel::kMaxMessageBytes;

  MessageBuffer() : memory_(new std::byte[kBytes]) {}
  [[nodiscard]] std::byte* data() noexcept override { return memory_.get() + kHeaderBytes; }
  [[nodiscard]] std::byte* header() noexcept { return memory_.get(); }
  [[nodiscard]] std::span<std::byte> first(std::size_t payload_bytes) {
    return {memory_.get(), kHeaderBytes + payload_bytes};
  }

  /// For one more message out of this memory to that rank, or for the one into it.
  Request& request_to(int rank);
  Request& request_from(int rank, std::uint64_t number);
  [[nodiscard]] bool is_idle() const;
  /// Whether a message may still come into this memory.
  [[nodiscard]] bool is_receiving() const { return expects_ && !requests_.front().done(); }
  struct Send {
    int to;
    Request* request;
  };
  [[nodiscard]] std::span<const Send> sends() const { return sends_; }
  /// Of the message that came in, and whose it is: which rank's, and which of that rank's.
  [[nodiscard]] Request& incoming() { return requests_.front(); }
  [[nodiscard]] int from() const { return from_; }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  void reset() {
    used_ = 0;
    expects_ = false;
    sends_.clear();
  }

 private:
  Request& new_request();

  std::unique_ptr<std::byte[]> memory_;  // NOLINT(modernize-avoid-c-arrays)
  std::deque<Request> requests_;
  std::vector<Send> sends_;
  bool expects_ = false;
  int from_ = -1;
  std::uint64_t number_ = 0;
  std::size_t used_ = 0;
};

class Network {
 public:
  struct Options {
    const Settings* settings;
    std::string address;  // of this host, for others
    RemoteProcess::Identity self;
    std::function<void(const std::shared_ptr<RemoteProcess>& from, const Notice&)> on_notice;
  };
  Network(Monitor& monitor, Options options);
  ~Network();

  [[nodiscard]] Endpoint& endpoint() noexcept { return *endpoint_; }
  [[nodiscard]] ControlPlane& control() noexcept { return control_; }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// How this process calls a new group in messages that it receives. From now on cells for it are
  /// kept, until release_group_id().
  std::uint32_t allocate_group_id();
  void release_group_id(std::uint32_t number) noexcept;

  /// When nobody holds it any more, what the network still does with it is called off.
  std::shared_ptr<MessageBuffer> acquire_buffer();

  /// Point-to-point cells of all groups arrive in the same few receives, for which libfabric has
  /// room once, not once per group. Returns those that have come for one group.
  std::vector<std::shared_ptr<MessageBuffer>> take_cells(std::uint32_t group_id);

  /// Moves data, unless another thread does.
  void progress() { endpoint_->try_progress(); }
  /// Whether messages have not left yet.
  [[nodiscard]] bool has_outstanding() const noexcept { return endpoint_->sending() != 0; }

  /// In a forked child: nothing is given back or called off any more.
  void drop_in_child() noexcept;

  /// Says goodbye and waits, not long, until what was sent has left. Idempotent.
  void close() noexcept;

 private:
  struct BufferPool;
  void post_cell_receives();
  void sort_cells();

  std::string address_;
  std::shared_ptr<BufferPool>
      buffer_pool_;  // outlives the endpoint, which may write to a buffer until its end
  std::unique_ptr<Endpoint> endpoint_;
  ControlPlane control_;
  std::mutex cells_mutex_;  // guards the rest
  std::uint32_t last_group_ = 0;
  std::map<std::uint32_t, std::vector<std::shared_ptr<MessageBuffer>>> cells_;  // by group number
  std::vector<std::shared_ptr<MessageBuffer>> posted_;
};

}  // namespace tccl::ofi
