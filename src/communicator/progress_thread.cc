#include "communicator/progress_thread.h"

#include <sched.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/futex.h"
#include "base/start_thread.h"
#include "communicator/operation_queue.h"
#include "communicator/p2p.h"

namespace tccl {
namespace {

/// The polling interval while something is outstanding.
constexpr auto kPollInterval = std::chrono::milliseconds(1);
/// The same while all that is outstanding has a waiting thread and nothing has moved for a while.
constexpr auto kPollIntervalWithWaiters = std::chrono::milliseconds(50);
/// After something moved the thread yields for this long instead of sleeping: more data usually
/// follows.
constexpr auto kYieldAfterMove = std::chrono::microseconds(200);
/// Traffic comes in bursts: for this long after the last activity the thread keeps polling, so that
/// a new operation needs no notify().
constexpr auto kPollAfterActivity = std::chrono::milliseconds(100);
/// A thread that has waited for messages within this time will probably wait again.
constexpr auto kRecentWait = std::chrono::milliseconds(1);
/// Deadlines and lost peers must be checked this often.
constexpr auto kCheckInterval = std::chrono::milliseconds(10);
constexpr auto kIdleSleep = std::chrono::seconds(1);

}  // namespace

struct ProgressThread::State {
  std::mutex mutex;  // guards the next three
  std::vector<std::weak_ptr<P2p>> engines;
  std::vector<std::weak_ptr<OperationQueue>> queues;
  std::function<bool()> progress_network;
  std::shared_ptr<ProgressSignal> signal;  // the futex on which the thread sleeps
  std::atomic<bool> needs_notify{false};   // the thread sleeps longer than kPollInterval
  std::atomic<bool> stopping{false};
  bool failed = false;  // the last turn, for want of memory; of the thread

  /// What one turn of polling found.
  struct Turn {
    bool outstanding = false;
    bool moved = false;
    bool all_have_waiters = true;
  };

  void wake() noexcept {
    signal->fetch_add(1, std::memory_order_release);  // pairs with the load in run()
    futex_wake_all(*signal, FutexScope::shared);
  }

  void run() {
    Clock::time_point last_moved;
    Clock::time_point last_outstanding;
    Clock::time_point last_signalled;
    std::uint32_t last_seen = 0;
    while (!stopping.load(std::memory_order_acquire)) {                    // pairs with stop()
      const std::uint32_t seen = signal->load(std::memory_order_acquire);  // pairs with wake()
      const bool signalled = std::exchange(last_seen, seen) != seen || std::exchange(failed, false);
      const Turn turn = try_poll(/*all_engines=*/signalled);
      const auto now = Clock::now();
      if (turn.moved) last_moved = now;
      if (signalled) last_signalled = now;
      if (turn.outstanding) last_outstanding = now;
      const bool keeps_polling =
          turn.outstanding ? !turn.all_have_waiters || now - last_signalled < kPollAfterActivity
                           : now - last_outstanding < kPollAfterActivity;
      if (now - last_moved < kYieldAfterMove) {
        sched_yield();
      } else if (keeps_polling) {
        futex_wait(*signal, seen, kPollInterval, FutexScope::shared);
      } else {
        sleep_until_notified(seen);
      }
    }
  }

  /// Sleeps until notified, at most until the next check for failures.
  void sleep_until_notified(std::uint32_t seen) {
    // Announce, then poll once more. Relaxed: the fence orders it and pairs with that in notify().
    needs_notify.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const Turn turn = try_poll(/*all_engines=*/false);
    if (!turn.outstanding) {
      futex_wait(*signal, seen, kIdleSleep, FutexScope::shared);
    } else if (turn.all_have_waiters) {
      futex_wait(*signal, seen, kPollIntervalWithWaiters, FutexScope::shared);
    }
    // Relaxed: a thread that still sees true makes one needless system call.
    needs_notify.store(false, std::memory_order_relaxed);
  }

  bool try_progress_network() {
    const std::lock_guard lock(mutex);
    try {
      return progress_network && progress_network();
    } catch (const std::exception&) {
      return false;  // the thread that waits for the message gets the same error and reports it
    }
  }

  /// The engines to poll: those with something outstanding, or all. Sets `turn.outstanding`.
  std::vector<std::shared_ptr<P2p>> engines_to_poll(bool all_engines, Turn& turn) {
    std::vector<std::shared_ptr<P2p>> to_poll;
    const std::lock_guard lock(mutex);
    for (const auto& known : engines) {
      auto engine = known.lock();
      const bool outstanding = engine && engine->needs_progress();
      turn.outstanding |= outstanding;
      if (outstanding || (engine && all_engines)) to_poll.push_back(std::move(engine));
    }
    return to_poll;
  }

  /// Posted operations that nobody has completed go to the thread pool.
  void poll_queues(Turn& turn) {
    const std::lock_guard lock(mutex);
    for (const auto& known : queues) {
      const auto queue = known.lock();
      if (!queue || !queue->has_posted()) continue;
      turn.outstanding = true;
      turn.all_have_waiters = false;
      queue->complete_unawaited();
    }
  }

  /// Without memory the turn is over, and the next one follows soon: the process may get some.
  Turn try_poll(bool all_engines) noexcept {
    try {
      return poll(all_engines);
    } catch (const std::exception&) {
      failed = true;
      return {.outstanding = true, .moved = false, .all_have_waiters = false};
    }
  }

  Turn poll(bool all_engines) {
    Turn turn;
    poll_queues(turn);
    const auto to_poll = engines_to_poll(all_engines, turn);
    if (try_progress_network()) {
      turn.outstanding = true;
      turn.all_have_waiters = false;
    }
    const auto now = Clock::now();
    for (const auto& engine : to_poll) {
      const bool is_served = all_engines ? engine->has_waiters()
                                         : engine->had_waiters_since(now - kRecentWait) &&
                                               engine->was_checked_since(now - kCheckInterval);
      if (is_served) continue;
      turn.all_have_waiters = false;
      turn.moved |= engine->advance(/*check_failures=*/true);
    }
    return turn;
  }
};

ProgressThread::ProgressThread(std::shared_ptr<ProgressSignal> signal)
    : state_(std::make_shared<State>()) {
  state_->signal = std::move(signal);
  thread_ = start_thread("the progress thread", [state = state_] { state->run(); });
}

void ProgressThread::add(const std::shared_ptr<P2p>& engine) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->engines, [](const auto& known) { return known.expired(); });
  state_->engines.push_back(engine);
}

void ProgressThread::add(const std::shared_ptr<OperationQueue>& queue) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->queues, [](const auto& known) { return known.expired(); });
  state_->queues.push_back(queue);
}

void ProgressThread::set_progress_network(std::function<bool()> progress_network) {
  const std::lock_guard lock(state_->mutex);
  state_->progress_network = std::move(progress_network);
}

void ProgressThread::notify() noexcept {
  // The operation is stored, then the flag is read; pairs with sleep_until_notified().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Only the first caller wakes the thread: until it runs, it has not looked at what is outstanding.
  // Relaxed: the fences order it.
  if (state_->needs_notify.load(std::memory_order_relaxed) &&
      state_->needs_notify.exchange(false, std::memory_order_relaxed))
    state_->wake();
}

void ProgressThread::stop() noexcept {
  if (!thread_.joinable()) return;
  state_->stopping.store(true, std::memory_order_release);  // pairs with run()
  state_->wake();
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

}  // namespace tccl
