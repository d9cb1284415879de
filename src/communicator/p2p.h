// P2p: the point-to-point engine of one communicator. It owns the lock, the waiting threads and the
// completion of sends and receives; the other parts are
//   match_queue.h   which receive gets which message
//   p2p_protocol.h  eager, rts, cts and data cells over the links
//   p2p_failure.h   lost peers and timeouts
//
// It has no thread of its own: start(), every thread in wait(), and the context's progress thread
// move data, under one mutex that is never held while waiting.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/wait.h"
#include "communicator/p2p_failure.h"
#include "communicator/p2p_protocol.h"
#include "communicator/p2p_work.h"
#include "transport/membership.h"
#include "transport/ofi/ofi_p2p.h"
#include "transport/shm/local_group.h"

namespace tccl {

class ProgressThread;

class P2p : public std::enable_shared_from_this<P2p> {
 public:
  /// Callbacks of completed operations run through `run_elsewhere`: threads that move data must not
  /// run user code, which may wait for that very data. `ofi_p2p` is null if all ranks are on this
  /// host.
  P2p(std::shared_ptr<shm::LocalGroup> group, std::shared_ptr<Membership> membership,
      std::unique_ptr<ofi::OfiP2p> ofi_p2p, std::size_t eager_bytes, ProgressThread& progress,
      WorkState::Submit run_elsewhere, std::function<void()> check_interrupt,
      BackoffPolicy backoff);

  std::shared_ptr<P2pWork> start(const Operation& operation, Communicator::CallOptions options);
  /// Cancels a work that has not begun to move data; it ends with the error `reason`, and the group
  /// stays usable. True also if it was cancelled before, false if it is too late.
  bool cancel(P2pWork& work, const Error& reason);
  /// Moves data until the work is done, at most until `deadline`. Called by Work::wait().
  void wait_for(P2pWork& work, Deadline deadline);
  [[nodiscard]] const std::string& group_name() const noexcept { return membership_->name(); }

  /// Moves what can be moved; true if anything moved. `check_failures` also checks deadlines and
  /// lost peers.
  bool advance(bool check_failures);
  [[nodiscard]] bool has_outstanding() const noexcept { return protocol_.has_outstanding(); }
  /// Messages to another host may be in flight although all operations are done.
  [[nodiscard]] bool needs_progress() const noexcept {
    return has_outstanding() || (ofi_p2p_ && ofi_p2p_->is_sending());
  }
  /// Whether a thread in wait() drives progress. The progress thread then does not, also for a
  /// short time after the wait: had_waiters_since().
  [[nodiscard]] bool has_waiters() const noexcept {
    return waiters_.load(std::memory_order_acquire) != 0;  // pairs with ~Waiting()
  }
  [[nodiscard]] bool had_waiters_since(Clock::time_point time) const noexcept {
    return has_waiters() || last_wait_.load(std::memory_order_relaxed) >= time;
  }
  /// Whether failures were checked since then: short waits never do.
  [[nodiscard]] bool was_checked_since(Clock::time_point time) const noexcept {
    return last_check_.load(std::memory_order_relaxed) >= time;
  }

  /// Cancels receives, waits for sends until their deadlines, and waits up to `flush_timeout` for
  /// messages to other hosts. Nothing moves afterwards.
  void close(Milliseconds flush_timeout) noexcept;
  [[nodiscard]] bool has_outstanding_sends();

 private:
  class Waiting;

  void wait_until(P2pWork& work, Deadline deadline);
  void sleep_for(const P2pWork& work, FunctionRef<bool()> something_moves,
                 FunctionRef<bool()> give_up);
  bool advance_locked();
  void check_failures_locked();
  std::vector<P2pWorkPtr> take_finished_locked();
  void complete(const std::vector<P2pWorkPtr>& finished);

  std::shared_ptr<shm::LocalGroup> group_;
  std::shared_ptr<Membership> membership_;
  std::unique_ptr<ofi::OfiP2p> ofi_p2p_;
  ProgressThread& progress_;
  WorkState::Submit run_elsewhere_;
  std::function<void()> check_interrupt_;
  BackoffPolicy backoff_;
  const Error out_of_memory_;                    // made before memory is exhausted
  std::atomic<int> waiters_{0};                  // threads in wait_until(); ~Waiting() releases
  std::atomic<Clock::time_point> last_wait_{};   // relaxed: a hint
  std::atomic<Clock::time_point> last_check_{};  // relaxed: a hint
  std::atomic<int> completing_{0};  // threads that hold finished operations; complete() releases

  std::mutex mutex_;  // guards everything below; never held while waiting or in callbacks
  P2pProtocol protocol_;
  P2pFailureDetector failures_;
  bool closing_ = false;  // start() throws
  bool closed_ = false;   // nothing moves any more
  std::uint64_t next_sequence_ = 1;
};

}  // namespace tccl
