// Sends and receives of one communicator: matching and progress.
//
// A receive matches the first message from its source (or from anyone) with its tag; messages of
// one sender with one tag are matched in the order in which they were sent. Small messages travel
// at once ("eager"), as long as the receiver has not too many of them unclaimed; larger ones are
// announced, and their data follows when the receiver has matched and granted them.
//
// There is no thread of its own: the call itself, every thread in wait(), and the context's
// progress thread move data, under one lock that is never held while waiting. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "communicator/work_state.h"
#include "transport/link.h"
#include "transport/members.h"
#include "transport/ofi/ofi_p2p.h"

namespace tccl {

class P2p;
class Progress;

class P2pWork final : public WorkState {
 public:
  P2pWork(std::shared_ptr<P2p> engine, const Operation& operation,
          Communicator::CallOptions options, std::uint64_t number);

 private:
  friend class P2p;
  void help_until_done(Deadline deadline) override;
  [[nodiscard]] std::string description() const override;
  bool cancel() noexcept override;

  std::shared_ptr<P2p> engine_;
  Operation operation_;
  std::uint64_t number_;  // for messages to people
  Deadline deadline_;
  std::uint64_t message_ = 0;  // for the receiver, once announced
  std::uint64_t moved_bytes_ = 0;
  std::exception_ptr pending_error_;
  std::uint32_t heartbeat_ = 0;  // of the peer, to tell a stalled one
  Clock::time_point heartbeat_changed_;
};

class P2p : public std::enable_shared_from_this<P2p> {
 public:
  /// Callbacks of completed work run through `run_elsewhere`: the threads that move data must not
  /// run user code, which may wait for that very data.
  /// `ofi_p2p` is for ranks of other hosts, if there are any.
  P2p(std::shared_ptr<Members> members, std::unique_ptr<ofi::OfiP2p> ofi_p2p,
      std::size_t eager_bytes, Progress& progress, WorkState::Submit run_elsewhere,
      std::function<void()> poll_interrupt, BackoffPolicy backoff);

  std::shared_ptr<P2pWork> start(const Operation& operation, Communicator::CallOptions options);
  bool cancel(const P2pWork& work);

  /// Moves what can be moved; true if anything was. `look_for_trouble` also checks deadlines and
  /// dead peers.
  bool advance(bool look_for_trouble);
  [[nodiscard]] bool has_outstanding() const noexcept {
    return outstanding_count_.load(std::memory_order_relaxed) != 0;
  }
  /// Also when all works are done, something may not have left for another host yet.
  [[nodiscard]] bool needs_progress() const noexcept {
    return has_outstanding() || (ofi_p2p_ && ofi_p2p_->is_sending());
  }
  /// A thread in wait() moves the data itself; the progress thread need not. Nor need it step in
  /// between two waits: it would only be in the way.
  [[nodiscard]] bool is_attended() const noexcept {
    return waiters_.load(std::memory_order_acquire) != 0;  // pairs with leaving wait_for()
  }
  [[nodiscard]] bool was_attended_since(Clock::time_point time) const noexcept {
    return is_attended() || last_attended_.load(std::memory_order_relaxed) >= time;
  }
  /// Whether somebody has looked for trouble since: waits that are short never do.
  [[nodiscard]] bool was_looked_at_since(Clock::time_point time) const noexcept {
    return last_look_.load(std::memory_order_relaxed) >= time;
  }

  /// Cancels receives and waits for sends, each up to its deadline. Nothing moves afterwards.
  void close() noexcept;

 private:
  using WorkPtr = std::shared_ptr<P2pWork>;
  class Waiting;
  friend class P2pWork;

  struct Unexpected {
    int source;
    std::uint64_t tag;
    std::uint64_t message;
    std::uint64_t bytes;
    bool eager;
    std::vector<std::byte> payload;
  };
  /// Traffic towards one rank.
  struct Outgoing {
    std::unique_ptr<Link> link;
    std::uint64_t eager_sent = 0;
    Clock::time_point last_wake;
    std::deque<std::uint64_t> grants;  // of messages announced by that rank
    std::deque<WorkPtr> unannounced;
    std::map<std::uint64_t, WorkPtr> awaiting_grant;
    std::deque<WorkPtr> granted;
  };
  /// Traffic from one rank.
  struct Incoming {
    std::map<std::uint64_t, WorkPtr> granted;
  };

  void enter_traffic_with(int source);
  void wait_for(P2pWork& work, Deadline deadline);
  void attend_until(P2pWork& work, Deadline deadline);
  void sleep_for(const P2pWork& work, FunctionRef<bool()> something_moves,
                 FunctionRef<bool()> give_up);
  bool advance_locked();

  bool take_cells(int source);
  void take_cell(int source, const CellHeader& header, const std::byte* payload);
  WorkPtr match(int source, std::uint64_t tag);
  void match_unexpected(const WorkPtr& receive);
  void deliver_eager(const WorkPtr& receive, int source, const std::byte* payload,
                     std::uint64_t bytes);
  void grant(const WorkPtr& receive, int source, std::uint64_t message, std::uint64_t bytes);
  bool size_agrees(const WorkPtr& receive, int source, std::uint64_t bytes);

  bool push_cells(int destination);
  bool push_one(Outgoing& to);
  void announce(Outgoing& to);
  void wake_progress_thread(Outgoing& to);
  void push_piece(Outgoing& to);
  [[nodiscard]] bool may_be_eager(const Outgoing& to, std::uint64_t bytes) const;
  std::vector<WorkPtr> take_finished_locked();

  void look_for_trouble();
  [[nodiscard]] std::exception_ptr trouble_with(P2pWork& work);
  [[nodiscard]] PeerState state_of(int rank) const;
  [[nodiscard]] int lost_peer(const P2pWork& work, PeerState* state_of) const;
  [[nodiscard]] std::string describe(const P2pWork& work) const;
  void watch_heartbeat(P2pWork& work) const;
  [[nodiscard]] std::exception_ptr timed_out(P2pWork& work) const;
  void fail_all(const std::exception_ptr& error);
  void finish(const WorkPtr& work, std::exception_ptr error);
  void complete(const std::vector<WorkPtr>& finished);

  std::shared_ptr<Members> owned_members_;
  Members& members_;
  std::unique_ptr<ofi::OfiP2p> ofi_p2p_;
  std::size_t eager_bytes_;
  Progress& progress_;
  WorkState::Submit run_elsewhere_;
  std::function<void()> poll_interrupt_;
  BackoffPolicy backoff_;
  std::atomic<int> waiters_{0};
  std::atomic<Clock::time_point> last_attended_{};  // relaxed: hints, both
  std::atomic<Clock::time_point> last_look_{};      // for trouble
  std::atomic<std::size_t> outstanding_count_{0};
  std::atomic<int> completing_{0};  // threads that hold finished works

  std::mutex mutex_;  // guards everything below; never held while waiting or in callbacks
  std::vector<Outgoing> outgoing_;  // by rank, both
  std::vector<Incoming> incoming_;
  std::list<WorkPtr> receives_;  // posted and unmatched, in order
  std::list<Unexpected> unexpected_;
  std::set<WorkPtr> outstanding_;
  std::vector<WorkPtr> finished_;  // to be completed once the lock is released
  bool closing_ = false;           // nothing can be started any more
  bool closed_ = false;            // nothing moves any more
  std::uint64_t next_number_ = 1;
  std::uint64_t next_message_ = 1;
};

}  // namespace tccl
