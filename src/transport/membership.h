// Membership: what one rank knows about all ranks of its group, on this host and on others: who
// they are, whether they are alive, and how a failure of the group reaches all of them.
//
// On this host LocalMembership (shared memory) answers. Between hosts, processes send notices over
// the control connections:
//   subscribe this rank will exchange messages with that rank and needs its notices
//   failed    the group has failed, and why
//   departed  this rank has left the group, and how many messages it had sent
//   wake      messages are waiting: wakes the receiver's progress thread
//   shrink    a part of a message of communicator/shrink.h
// A rank that learns of a failure marks the group on its own host and sends one `failed` notice to
// every rank that it exchanges messages with, so the failure reaches every rank that could wait.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "health/control_plane.h"
#include "health/local_process.h"
#include "topology/host_map.h"
#include "transport/local_membership.h"

namespace tccl {

/// Kinds of Notice.
enum class GroupNotice : std::uint32_t {
  subscribe = 1,
  failed = 2,
  departed = 3,
  wake = 4,
  shrink = 5
};

/// The two kinds of messages between hosts. Each is counted, so that a receiver knows after a
/// departure whether more can come.
enum class TrafficKind : std::uint8_t { collective, point_to_point };

class Membership {
 public:
  /// By rank; null for ranks of this host.
  using Peers = std::vector<std::shared_ptr<RemoteProcess>>;

  /// `peers` and `control` are needed only for a group over several hosts.
  Membership(std::shared_ptr<LocalMembership> local, HostMap host_map, const Peers& peers,
             ControlPlane* control);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return host_map_.ranks(); }
  [[nodiscard]] const std::string& name() const noexcept { return local_->group_name(); }
  [[nodiscard]] std::uint64_t group_uid() const noexcept { return group_uid_; }
  [[nodiscard]] const HostMap& host_map() const noexcept { return host_map_; }
  [[nodiscard]] bool is_local(int rank) const { return host_map_.same_host(rank, rank_); }
  [[nodiscard]] bool over_several_hosts() const noexcept { return host_map_.hosts() > 1; }
  /// The process of a rank of another host.
  [[nodiscard]] const std::shared_ptr<RemoteProcess>& process(int rank) const {
    return remote(rank).process;
  }

  /// "rank 3 (host b, pid 4711)"
  [[nodiscard]] std::string who(int rank) const;
  [[nodiscard]] PeerState state_of(int rank) const noexcept;
  /// A counter that changes as long as the process of that rank is not stalled.
  [[nodiscard]] std::uint32_t liveness_counter(int rank) const noexcept;
  /// A rank whose liveness counter has not changed for this long is stalled, not merely slow.
  /// Heartbeats from other hosts are less frequent.
  [[nodiscard]] std::chrono::milliseconds stalled_after(int rank) const {
    return is_local(rank) ? kStalledAfter : std::chrono::milliseconds(2000);
  }
  /// Not only that the rank has left the group.
  [[nodiscard]] bool process_has_ended(int rank) const noexcept;
  /// The error to throw: `operation` needs this rank, which has died or departed.
  [[nodiscard]] Error peer_lost_error(int rank, const std::string& operation) const;

  enum class Losses : std::uint8_t { all, departures };
  /// A rank of another host that has gone, as far as any rank of this host knows, and that collective
  /// number `sequence` cannot complete without. `losses`: only of ranks that left before it, or also
  /// of those that died at any time.
  [[nodiscard]] std::optional<LostRank> find_lost_rank(std::uint32_t sequence, Losses losses) const;
  /// The error to throw for it.
  [[nodiscard]] Error lost_error(const LostRank& lost, const std::string& operation) const;
  /// Lets the other ranks of this host know which ranks of other hosts have gone. Call regularly.
  void note_lost_ranks() noexcept;

  // --- failure of the group ---
  [[nodiscard]] bool failed() const noexcept { return local_->failed(); }
  [[nodiscard]] Error failure() const { return local_->failure(); }
  [[nodiscard]] bool failed_later_than(std::uint32_t sequence) const {
    return local_->failed_later_than(sequence);
  }
  /// Marks the group as failed for all ranks. The first reason stays and is returned. `sequence`: of
  /// the collective that fails; -1 if none does.
  Error fail(const Error& reason, std::int64_t sequence = -1) noexcept;
  /// Sends the `failed` notices if the group has failed and they were not sent yet: another rank of
  /// this host may have marked the group while this rank was computing.
  void propagate_failure() noexcept;

  // --- traffic with other hosts ---
  /// Call before any message to or from that rank: subscribes to its notices, and it to ours.
  void subscribe(int rank) {
    if (!remote(rank).subscribed.load(std::memory_order_relaxed)) subscribe_first(rank);
  }
  void count_sent(int rank, TrafficKind traffic) {
    remote(rank).sent.of(traffic).fetch_add(1, std::memory_order_relaxed);
  }
  /// Whether that rank's message `message_number` (from 0) can no longer arrive because it has
  /// departed. A process that departed without a `subscribe` notice of this group has sent none.
  [[nodiscard]] bool cannot_arrive(int rank, TrafficKind traffic,
                                   std::uint64_t message_number) const noexcept;
  void wake_progress_thread(int rank) noexcept;

  // --- shrinking the group: works also after it has failed ---
  /// To a rank of another host; of any size. Nothing arrives at a rank that has left the group.
  void send_shrink_message(int rank, std::string_view message) noexcept;
  /// Those that have arrived since the last call, in the order of each sender.
  std::vector<std::string> take_shrink_messages();

  /// Handles a notice from another host.
  void handle_notice(const RemoteProcess& from, const Notice& notice) noexcept;
  /// Sends the `departed` notices. Nothing is sent or handled afterwards. Returns the notice for
  /// ranks that subscribe later, which does not change any more. `last_sequence` is that of this
  /// rank's last collective.
  const Notice& depart(std::uint32_t last_sequence) noexcept;

 private:
  struct Counters {
    std::atomic<std::uint64_t> collective{0};
    std::atomic<std::uint64_t> point_to_point{0};
    std::atomic<std::uint64_t>& of(TrafficKind traffic) {
      return traffic == TrafficKind::collective ? collective : point_to_point;
    }
  };
  struct RemoteState {
    std::shared_ptr<RemoteProcess> process;
    /// Both ways. Set under mutex_; relaxed: read as a hint without it.
    std::atomic<bool> subscribed{false};
    Counters sent;                   // relaxed: read by this process only
    Counters sent_before_departure;  // published by `departed`, as is the next
    std::atomic<std::uint32_t> last_sequence{0};
    std::atomic<bool> departed{false};  // handle_departed() releases; see state_of()
    std::string shrink_parts;           // received, of a message that is not complete
  };
  [[nodiscard]] RemoteState& remote(int rank) const {
    return *remotes_[static_cast<std::size_t>(rank)];
  }
  void subscribe_first(int rank);
  [[nodiscard]] int local_rank(int rank) const { return host_map_.local_rank(rank); }
  /// False if there is no memory for it, as send_failed().
  bool send_notice(RemoteState& to, GroupNotice kind, std::string text) const noexcept;
  bool send_failed(RemoteState& to) const noexcept;
  void send_departure(RemoteState& to) const noexcept;
  void handle_subscribe(RemoteState& other) noexcept;
  void handle_failed(const std::string& text) noexcept;
  void handle_shrink(RemoteState& other, std::string_view text) noexcept;
  static void handle_departed(RemoteState& other, const std::string& text) noexcept;
  [[nodiscard]] std::vector<RemoteState*> states_of(const RemoteProcess& peer) const;
  [[nodiscard]] std::string unreachable_hosts() const;
  [[nodiscard]] LostRank lost_rank(int rank) const noexcept;

  std::shared_ptr<LocalMembership> local_;
  std::uint64_t group_uid_;
  HostMap host_map_;
  int rank_;
  std::vector<std::unique_ptr<RemoteState>> remotes_;
  ControlPlane* control_;
  /// Guards what follows, the setting of RemoteState::subscribed, and RemoteState::shrink_parts.
  mutable std::mutex mutex_;
  bool failure_is_sent_ = false;  // to all subscribed ranks
  bool has_departed_ = false;
  const Error failed_elsewhere_;  // made before memory is exhausted
  Notice departure_notice_;       // valid once has_departed_, as is the next
  std::uint32_t last_sequence_ = 0;
  std::vector<std::string> shrink_messages_;  // received
};

}  // namespace tccl
