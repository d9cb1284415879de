#include "communicator/progress.h"

#include <sched.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/futex.h"
#include "communicator/p2p.h"

namespace tccl {
namespace {

constexpr auto kNap = std::chrono::milliseconds(1);
/// Nothing has happened for a while and all that is under way has a thread that waits for it.
constexpr auto kAttendedNap = std::chrono::milliseconds(50);
/// After something moved, more is likely to follow at once.
constexpr auto kStayAwake = std::chrono::microseconds(200);
/// Traffic comes in bursts: within this time a new operation needs no notify.
constexpr auto kStayAlert = std::chrono::milliseconds(100);
/// Whoever has just waited for messages will probably do so again.
constexpr auto kRecently = std::chrono::milliseconds(1);
/// Somebody must look at deadlines and dead peers this often.
constexpr auto kLookPeriod = std::chrono::milliseconds(10);
constexpr auto kLongSleep = std::chrono::seconds(1);

}  // namespace

struct Progress::State {
  std::mutex mutex;
  std::vector<std::weak_ptr<P2p>> engines;
  std::function<bool()> poll_hook;
  std::shared_ptr<ProgressSignal> progress_signal;  // also what the thread sleeps on
  std::atomic<bool> fast_asleep{false};
  std::atomic<bool> stopping{false};

  void wake() noexcept {
    progress_signal->fetch_add(1, std::memory_order_release);  // pairs with the load in run()
    futex_wake_all(*progress_signal, FutexScope::shared);
  }

  void run() {
    Clock::time_point last_moved;
    Clock::time_point last_busy;
    Clock::time_point last_signalled;
    std::uint32_t last_seen = 0;
    while (!stopping.load(std::memory_order_acquire)) {
      const std::uint32_t seen = progress_signal->load(std::memory_order_acquire);
      const bool signalled = std::exchange(last_seen, seen) != seen;
      bool moved = false;
      bool attended = true;
      const bool busy = look_at(signalled, &moved, &attended);
      const auto now = Clock::now();
      if (moved) last_moved = now;
      if (signalled) last_signalled = now;
      if (busy) last_busy = now;
      const bool alert =
          busy ? !attended || now - last_signalled < kStayAlert : now - last_busy < kStayAlert;
      if (now - last_moved < kStayAwake) {
        sched_yield();
      } else if (alert) {
        futex_wait(*progress_signal, seen, kNap, FutexScope::shared);
      } else {
        sleep_fast(seen);
      }
    }
  }

  /// Until kicked, or as long as nothing can go wrong meanwhile.
  void sleep_fast(std::uint32_t seen) {
    fast_asleep.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // announce, then look once more
    bool moved = false;
    bool attended = true;
    const bool busy = look_at(/*everyone=*/false, &moved, &attended);
    if (!busy) {
      futex_wait(*progress_signal, seen, kLongSleep, FutexScope::shared);
    } else if (attended) {
      futex_wait(*progress_signal, seen, kAttendedNap, FutexScope::shared);
    }
    fast_asleep.store(false, std::memory_order_relaxed);
  }

  bool run_poll_hook() {
    const std::lock_guard lock(mutex);
    try {
      return poll_hook && poll_hook();
    } catch (const std::exception&) {
      return false;  // whoever waits for it finds out, too, and can say so
    }
  }

  /// At all engines that have something under way, or at everyone's. Returns whether anything is
  /// under way; sets `moved` if something moved and unsets `attended` if nobody waits for it.
  bool look_at(bool everyone, bool* moved, bool* attended) {
    std::vector<std::shared_ptr<P2p>> engines_to_see;
    bool busy = false;
    {
      const std::lock_guard lock(mutex);
      for (const auto& known : engines) {
        auto engine = known.lock();
        const bool outstanding = engine && engine->needs_progress();
        busy |= outstanding;
        if (outstanding || (engine && everyone)) engines_to_see.push_back(std::move(engine));
      }
    }
    if (run_poll_hook()) {
      busy = true;
      *attended = false;
    }
    const auto now = Clock::now();
    for (const auto& engine : engines_to_see) {
      const bool in_good_hands = everyone ? engine->is_attended()
                                          : engine->was_attended_since(now - kRecently) &&
                                                engine->was_looked_at_since(now - kLookPeriod);
      if (in_good_hands) continue;
      *attended = false;
      *moved |= engine->advance(true);
    }
    return busy;
  }
};

Progress::Progress(std::shared_ptr<ProgressSignal> progress_signal)
    : state_(std::make_shared<State>()) {
  state_->progress_signal = std::move(progress_signal);
  thread_ = std::thread([state = state_] { state->run(); });
}

void Progress::add(const std::shared_ptr<P2p>& engine) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->engines, [](const auto& known) { return known.expired(); });
  state_->engines.push_back(engine);
}

void Progress::set_poll_hook(std::function<bool()> poll_hook) {
  const std::lock_guard lock(state_->mutex);
  state_->poll_hook = std::move(poll_hook);
}

void Progress::notify() noexcept {
  std::atomic_thread_fence(
      std::memory_order_seq_cst);  // operation stored, then look; pairs with run
  if (state_->fast_asleep.load(std::memory_order_relaxed)) state_->wake();
}

void Progress::stop() noexcept {
  if (!thread_.joinable()) return;
  state_->stopping.store(true, std::memory_order_release);
  state_->wake();
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

}  // namespace tccl
