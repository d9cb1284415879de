// P2pProtocol: the message protocol of one communicator's sends and receives, over one link per
// rank.
//
//   small message:  eager ->                                   the payload travels at once
//   large message:  rts ->   <- cts   data -> ... data ->      cts once a receive matches
//
// Eager messages are bounded: if a receiver has more than 1 MiB of unmatched eager data from one
// sender, the sender sends an rts for small messages too.
//
// Thread safety: none; used under the mutex of the P2p engine, except has_outstanding().
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "communicator/match_queue.h"
#include "transport/link.h"
#include "transport/membership.h"
#include "transport/ofi/ofi_p2p.h"
#include "transport/shm/local_group.h"

namespace tccl {

class P2pProtocol {
 public:
  /// `ofi_p2p` may be null if all ranks are on this host.
  P2pProtocol(shm::LocalGroup& group, Membership& membership, ofi::OfiP2p* ofi_p2p,
              std::size_t eager_bytes);

  void start(const P2pWorkPtr& work);
  /// Takes arrived cells and posts cells while links have room. Returns whether any cell moved.
  /// Throws Error{system} if a rank sent a malformed cell, or if the network has failed.
  bool advance();
  /// Cancels a receive that is not matched, or a send of which no cell was posted. False if it is
  /// too late.
  bool cancel(P2pWork& work, const Error& reason);
  void cancel_receives(const std::exception_ptr& error);
  void fail_all(const std::exception_ptr& error);

  [[nodiscard]] bool has_outstanding() const noexcept {
    return outstanding_count_.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] const std::set<P2pWorkPtr>& outstanding() const { return outstanding_; }
  /// The operations that ended since the last call; their pending_error is set.
  std::vector<P2pWorkPtr> take_finished() { return std::exchange(finished_, {}); }
  /// False while cells of a rank that has departed are still in flight.
  [[nodiscard]] bool is_drained(int rank) const { return queues(rank).link->is_drained(); }

 private:
  /// The link to one rank, and what waits for it.
  struct PeerQueues {
    std::unique_ptr<Link> link;
    // --- to that rank ---
    std::uint64_t used_credit = 0;          // in all, by eager messages
    Clock::time_point last_wake;            // of its progress thread
    std::deque<std::uint64_t> cts_to_send;  // ids of its messages that have matched a receive
    std::deque<P2pWorkPtr> queued;          // sends of which no cell was posted
    std::map<std::uint64_t, P2pWorkPtr> awaiting_cts;  // by message id
    std::deque<P2pWorkPtr> cleared;                    // sends whose cts has arrived
    // --- from that rank ---
    std::map<std::uint64_t, P2pWorkPtr>
        receiving;  // by message id; the cts is sent or in cts_to_send
  };
  [[nodiscard]] PeerQueues& queues(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const PeerQueues& queues(int rank) const {
    return peers_[static_cast<std::size_t>(rank)];
  }

  void start_receive(const P2pWorkPtr& receive);
  void subscribe_to(int source);
  void finish(const P2pWorkPtr& work, std::exception_ptr error);

  // --- receiving ---
  bool take_cells(int source);
  void take_cell(int source, const CellHeader& header, const std::byte* payload);
  [[nodiscard]] Error malformed_cell(int source, const CellHeader& header,
                                     const std::string& problem) const;
  void take_message(int source, const CellHeader& header, const std::byte* payload);
  void take_data(int source, const CellHeader& header, const std::byte* payload);
  void deliver_eager(const P2pWorkPtr& receive, int source, const std::byte* payload,
                     std::uint64_t bytes);
  void accept_rts(const P2pWorkPtr& receive, int source, std::uint64_t message_id,
                  std::uint64_t bytes);
  bool check_size(const P2pWorkPtr& receive, int source, std::uint64_t bytes);

  // --- sending ---
  bool post_cells(int destination);
  bool post_one(PeerQueues& to);
  void post_message(PeerQueues& to);
  void post_data(PeerQueues& to);
  void wake_progress_thread(PeerQueues& to);
  [[nodiscard]] bool may_be_eager(const PeerQueues& to, std::uint64_t bytes) const;

  Membership& membership_;
  ofi::OfiP2p* ofi_p2p_;
  std::size_t eager_bytes_;
  std::vector<PeerQueues> peers_;  // by rank
  MatchQueue match_queue_;
  std::set<P2pWorkPtr> outstanding_;
  std::atomic<std::size_t> outstanding_count_{0};  // relaxed: a hint outside the lock
  std::vector<P2pWorkPtr> finished_;
  std::uint64_t next_message_id_ = 1;
};

}  // namespace tccl
