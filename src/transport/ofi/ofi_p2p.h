// Point-to-point traffic of one group with ranks of other hosts.
//
// Each cell says whose it is and which of that rank's, so that the order of arrival does not
// matter. Used under the lock of its engine.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/link.h"
#include "transport/members.h"
#include "transport/ofi/network.h"
#include "transport/ofi/ofi_channel.h"

namespace tccl::ofi {

class OfiP2p {
 public:
  OfiP2p(Network& network, Members& members, std::vector<RankAddress> addresses,
         std::uint32_t own_group_id);

  [[nodiscard]] std::unique_ptr<Link> link_to(int rank);
  /// Sorts what has come, and sends what could not be sent yet.
  void collect();
  /// Whether something has not left yet. From any thread.
  [[nodiscard]] bool is_sending() const noexcept {
    return sending_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Network& network() noexcept { return network_; }
  /// Waits until what was posted has left, as long as its receivers live and at most until then.
  void close(Deadline deadline) noexcept;

 private:
  friend class OfiLink;
  struct Incoming {
    std::uint64_t next = 0;
    std::map<std::uint64_t, std::shared_ptr<MessageBuffer>> waiting;  // by number
  };
  struct Waiting {
    std::shared_ptr<MessageBuffer> buffer;
    std::size_t bytes = 0;
  };
  void accept(const std::shared_ptr<MessageBuffer>& buffer);
  void note_sending() {
    sending_.store(!waiting_.empty() || !outgoing_.empty(), std::memory_order_relaxed);
  }
  /// True if nothing waits any more.
  bool send_waiting(int rank);
  bool try_to_send(int rank, const Waiting& cell);
  void note_trouble(int rank, const std::string& why);
  void throw_if_unexplained();

  Network& network_;
  Members& members_;
  std::vector<RankAddress> addresses_;
  std::uint32_t own_group_id_;
  std::vector<Incoming> incoming_;  // by rank
  std::atomic<bool> sending_{false};
  std::map<int, Waiting> waiting_;  // by rank: a cell that libfabric has not taken yet
  std::deque<std::shared_ptr<MessageBuffer>> outgoing_;
  struct Trouble {
    int rank;
    std::string why;
    Clock::time_point since;
  };
  std::optional<Trouble> trouble_;  // the first cell that could not be sent
};

}  // namespace tccl::ofi
