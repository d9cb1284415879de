// Point-to-point traffic of one group with ranks of other hosts: Links (transport/link.h) over
// libfabric.
//
// Each cell carries its source and a number, so cells may arrive in any order.
// Thread safety: the caller holds the lock of its P2p object, except for is_sending().
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/link.h"
#include "transport/membership.h"
#include "transport/ofi/network.h"
#include "transport/ofi/sends_in_flight.h"

namespace tccl::ofi {

class OfiP2p {
 public:
  OfiP2p(Network& network, Membership& membership, std::vector<RankAddress> addresses,
         std::uint32_t own_group_tag);

  [[nodiscard]] std::unique_ptr<Link> link_to(int rank);
  /// Accepts arrived cells and sends queued ones. Throws Error{system} if sending failed and the
  /// peer is alive, or if a rank of the group sent a malformed cell.
  void collect();
  /// Whether cells are queued or in flight. From any thread, for decisions only: relaxed.
  [[nodiscard]] bool is_sending() const noexcept {
    return sending_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Network& network() noexcept { return network_; }
  /// Waits until all cells were sent or their receivers have departed or died, at most until the
  /// deadline.
  void close(Deadline deadline) noexcept;

 private:
  friend class OfiLink;
  struct Incoming {
    std::uint64_t next = 0;  // number of the next cell
    std::map<std::uint64_t, std::shared_ptr<MessageBuffer>> arrived_cells;  // by cell number
  };
  struct QueuedCell {
    std::shared_ptr<MessageBuffer> buffer;
    std::size_t bytes = 0;
  };
  void add_arrived(const std::shared_ptr<MessageBuffer>& buffer);
  void update_sending() {
    sending_.store(!queued_.empty() || !sends_in_flight_.empty(), std::memory_order_relaxed);
  }
  /// Returns true if no cell for that rank is queued any more.
  bool send_queued(int rank);
  bool send_all_queued();
  bool try_send(int rank, const QueuedCell& cell);
  void note_send_error(int rank, const std::string& reason);
  void throw_if_unexplained();

  Network& network_;
  Membership& membership_;
  std::vector<RankAddress> addresses_;
  std::uint32_t own_group_tag_;
  std::vector<Incoming> incoming_;  // by rank
  std::atomic<bool> sending_{false};
  std::map<int, QueuedCell> queued_;  // by rank: a cell that libfabric has not accepted yet
  SendsInFlight sends_in_flight_;
  struct SendError {
    int rank;
    std::string reason;
    Clock::time_point since;
  };
  std::optional<SendError> send_error_;  // the first one
};

}  // namespace tccl::ofi
