// All ranks of a group, on whichever host: who they are, whether they live, and how the group dies.
//
// On this host that is shm::Group, whose memory tells everything. Of other hosts the control
// connections do: a process is told that a rank enters the group's traffic with it, that the group
// has failed, and that a rank has left. Who learns of a failure marks its own host's group and
// tells whoever it has traffic with, once; so the failure reaches everyone who could wait.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "health/control_plane.h"
#include "health/local_process.h"
#include "topology/host_map.h"
#include "transport/shm/group.h"

namespace tccl {

using shm::PeerState;

/// Kinds of Notice.
enum class GroupNotice : std::uint32_t { entered = 1, failed = 2, left = 3, wake = 4 };

/// Messages of a group between two hosts are counted by kind, both those sent and those received.
enum class Traffic : std::uint8_t { collective, point_to_point };

class Members {
 public:
  using Peers = std::vector<std::shared_ptr<RemoteProcess>>;  // by rank; none: it is on this host

  /// `peers` and `control` are needed only if there are other hosts.
  Members(std::shared_ptr<shm::Group> local, HostMap host_map, const Peers& peers,
          ControlPlane* control);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return host_map_.ranks(); }
  [[nodiscard]] const std::string& name() const noexcept { return local_->identity().name; }
  [[nodiscard]] std::uint64_t uid() const noexcept { return uid_; }
  [[nodiscard]] const HostMap& host_map() const noexcept { return host_map_; }
  [[nodiscard]] shm::Group& local() const noexcept { return *local_; }
  [[nodiscard]] bool is_local(int rank) const { return host_map_.same_host(rank, rank_); }
  [[nodiscard]] bool over_several_hosts() const noexcept { return host_map_.hosts() > 1; }
  /// Of a rank of another host.
  [[nodiscard]] const std::shared_ptr<RemoteProcess>& peer(int rank) const {
    return remote(rank).peer;
  }

  /// "rank 3 (host b, pid 4711)"
  [[nodiscard]] std::string who(int rank) const;
  [[nodiscard]] PeerState state_of(int rank) const noexcept;
  /// A number that changes as long as the rank shows signs of life.
  [[nodiscard]] std::uint32_t heartbeat(int rank) const noexcept;
  /// Why `operation` cannot do without `rank`, which is absent.
  [[nodiscard]] Error peer_lost_error(int rank, const std::string& operation) const;

  // --- death of the group ---
  [[nodiscard]] bool failed() const noexcept { return local_->failed(); }
  [[nodiscard]] Error failure() const { return local_->failure(); }
  /// Declares the group dead for all ranks. The first reason stays. Returns that reason.
  Error fail(const Error& reason) noexcept;
  /// If it has failed and others do not know: another rank of this host may have found out while
  /// this one was busy elsewhere.
  void spread_failure() noexcept;

  /// From how long a silence on a rank is stalled, not merely slow: signs of life from other hosts
  /// come less often.
  [[nodiscard]] std::chrono::milliseconds stalled_after(int rank) const {
    return is_local(rank) ? kStalledAfter : std::chrono::milliseconds(2000);
  }

  // --- traffic with other hosts ---
  /// Before any message to or from that rank: from the first on, both tell each other what happens.
  void enter(int rank) {
    if (!remote(rank).entered.load(std::memory_order_relaxed)) enter_first(rank);
  }
  void count_sent(int rank, Traffic traffic) {
    remote(rank).sent.of(traffic).fetch_add(1, std::memory_order_relaxed);
  }
  /// Whether message number `number` (from 0) can no longer come, because that rank has left. One
  /// whose process has ended in order without a word of this group has never sent any.
  [[nodiscard]] bool will_never_come(int rank, Traffic traffic,
                                     std::uint64_t number) const noexcept;
  void wake_progress_thread(int rank) noexcept;
  /// From another host.
  void take_notice(const RemoteProcess& from, const Notice& notice) noexcept;
  /// Tells the other hosts; nothing is told, or note_heard, afterwards. Returns what to tell those
  /// who come late.
  Notice leave() noexcept;

 private:
  struct Counters {
    std::atomic<std::uint64_t> collective{0};
    std::atomic<std::uint64_t> point_to_point{0};
    std::atomic<std::uint64_t>& of(Traffic traffic) {
      return traffic == Traffic::collective ? collective : point_to_point;
    }
  };
  struct RemoteState {
    std::shared_ptr<RemoteProcess> peer;
    std::atomic<bool> entered{false};  // set under mutex_
    Counters sent;
    Counters sent_before_leaving;
    std::atomic<bool> left{false};
  };
  [[nodiscard]] RemoteState& remote(int rank) const {
    return *remotes_[static_cast<std::size_t>(rank)];
  }
  void enter_first(int rank);
  [[nodiscard]] int local_rank(int rank) const { return host_map_.local_rank(rank); }
  void tell(RemoteState& to, GroupNotice kind, std::string text) const noexcept;
  void tell_of_leaving(RemoteState& to) const noexcept;
  void tell_of_end(RemoteState& to) const noexcept;
  void tell_of_failure(RemoteState& to) const noexcept;
  void hear_of_failure(const std::string& text) noexcept;
  [[nodiscard]] std::vector<RemoteState*> states_of(const RemoteProcess& peer) const;
  [[nodiscard]] std::string unreachable_hosts() const;

  std::shared_ptr<shm::Group> local_;
  std::uint64_t uid_;
  HostMap host_map_;
  int rank_;
  std::vector<std::unique_ptr<RemoteState>> remotes_;
  ControlPlane* control_;
  mutable std::mutex mutex_;  // guards what follows, and the setting of RemoteState::entered
  bool told_ = false;         // those who have entered know of the failure
  bool over_ = false;
  Notice departure_notice_;  // once it is over
};

}  // namespace tccl
