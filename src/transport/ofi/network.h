// Network resources of a process, shared by all its groups: one libfabric endpoint, the pool of
// message buffers, and the control connections.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "config/settings.h"
#include "health/control_plane.h"
#include "transport/membership.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/message_buffer.h"

namespace tccl::ofi {

constexpr std::uint32_t kMaxGroupTag = 0xfffff;

/// The tag of a message, in 48 bits because some providers have no more: the receiver's group tag
/// (20 bits), the kind of traffic (1), the message number (27, modulo).
constexpr std::uint64_t tag_of(std::uint32_t group_tag, TrafficKind kind,
                               std::uint64_t message_number) {
  return (std::uint64_t{group_tag & kMaxGroupTag} << 28) |
         (std::uint64_t{kind == TrafficKind::point_to_point} << 27) | (message_number & 0x7ffffff);
}

/// How to reach a rank of another host.
struct RankAddress {
  fi_addr_t fi_addr = Endpoint::kAnySource;
  std::uint32_t group_tag = 0;  // of the receiver
};

/// Start of the header of a point-to-point cell: its destination group and its source.
struct CellAddress {
  std::uint64_t group_uid;
  std::uint32_t group_tag;
  std::int32_t source;  // rank in the group
};

class Network {
 public:
  struct Options {
    const Settings* settings;
    std::string address;  // of this host, as other hosts reach it
    RemoteProcess::Identity self;
    std::function<void(const std::shared_ptr<RemoteProcess>& from, const Notice&)> on_notice;
  };
  Network(Monitor& monitor, Options options);
  ~Network();

  [[nodiscard]] Endpoint& endpoint() noexcept { return *endpoint_; }
  [[nodiscard]] ControlPlane& control() noexcept { return control_; }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// A new group tag: the part of the message tag by which this process receives messages of one
  /// group. Cells with this tag are kept for take_cells() until release_group_tag(). Any process can
  /// send to the endpoint and group tags can be guessed, but only ranks know the group_uid: cells
  /// with another one are dropped at once, so that they take no memory.
  std::uint32_t allocate_group_tag(std::uint64_t group_uid);
  void release_group_tag(std::uint32_t group_tag) noexcept;

  /// When the last reference goes, requests that have not completed are cancelled.
  std::shared_ptr<MessageBuffer> acquire_buffer();

  /// Returns the point-to-point cells that arrived for a group. Cells of all groups arrive in one
  /// small set of posted receives, so that the memory for them does not grow with the number of
  /// groups.
  std::vector<std::shared_ptr<MessageBuffer>> take_cells(std::uint32_t group_tag);

  /// Warns, once, that a message was dropped. Any process may send to the endpoint.
  void warn_dropped(const std::string& reason) noexcept;

  /// Progresses the endpoint, unless another thread does.
  void progress() { endpoint_->try_progress(); }
  [[nodiscard]] bool has_sends_in_flight() const noexcept {
    return endpoint_->in_flight_sends() != 0;
  }

  /// In a forked child: buffers are neither returned nor cancelled.
  void close_in_child() noexcept;

  /// Flushes sends in flight, for a short time at most, and closes the control connections cleanly.
  /// Idempotent.
  void close() noexcept;

 private:
  void post_cell_receives();
  void sort_cells();
  void keep_cell(const std::shared_ptr<MessageBuffer>& buffer);

  std::string address_;
  /// Outlives the endpoint, which may write to a buffer until it is closed.
  std::shared_ptr<BufferPool> buffer_pool_;
  std::unique_ptr<Endpoint> endpoint_;
  ControlPlane control_;
  std::atomic<bool> warned_{false};  // relaxed: orders nothing
  std::mutex cells_mutex_;           // guards the rest
  struct Group {
    std::uint64_t uid;
    std::vector<std::shared_ptr<MessageBuffer>> cells;
  };
  std::uint32_t last_group_tag_ = 0;
  std::uint32_t highest_group_tag_ = 0;                 // that was ever allocated
  std::map<std::uint32_t, Group> groups_;               // by group tag
  std::vector<std::shared_ptr<MessageBuffer>> posted_;  // receives for cells of any group
};

}  // namespace tccl::ofi
