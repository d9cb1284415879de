// The wait policy: spin briefly, then yield, then sleep. Waits for peers and for worker threads go
// through wait_until() or its two halves, spin_then_yield() and sleep_until().
//
//   const bool ready = wait_until(doorbell, peer_has_posted, deadline_has_passed);
//
// What a waiter sleeps on is a parameter, the Sleeper: a Doorbell in shared memory (other ranks of
// this host), the network endpoint (ranks of other hosts; transport/ofi/endpoint.h), the worker
// pool's own doorbell (base/worker_pool.cc).
//
// Why three phases, measured with four ranks on two cores: pure spinning costs milliseconds per
// exchange, sleeping at once tens of microseconds, yielding ten. Spinning and yielding are bounded,
// so an idle rank uses no CPU.
//
// Thread safety: any number of threads may wait on and notify the same doorbell.
#pragma once

#include <sched.h>

#include <atomic>
#include <climits>
#include <concepts>
#include <cstdint>

#include "base/clock.h"
#include "base/futex.h"

namespace tccl {

/// How long to poll before sleeping.
struct BackoffPolicy {
  Clock::duration spin;
  Clock::duration before_sleep;  // spinning plus yielding
};
/// Every rank has a CPU. A yield costs as much as a small collective, so spin for the usual skew
/// between ranks.
inline constexpr BackoffPolicy kBackoffDedicated{std::chrono::microseconds(20),
                                                 std::chrono::microseconds(100)};
/// More ranks than CPUs: a rank that spins keeps another one from running. Waking a sleeping rank
/// on an idle CPU takes tens of microseconds, so yield for 500 us before sleeping.
inline constexpr BackoffPolicy kBackoffOversubscribed{std::chrono::microseconds(0),
                                                      std::chrono::microseconds(500)};
/// Each poll of the network is a system call, so spinning between polls gains nothing; waking up
/// takes tens of microseconds.
inline constexpr BackoffPolicy kBackoffNetwork{std::chrono::microseconds(0),
                                               std::chrono::microseconds(500)};

/// A sleeping rank wakes this often to check whether its peers are alive: no system call reports
/// a death at once. The cost of waiting is in docs/performance.md: about 1 % of a core.
inline constexpr auto kSleepInterval = std::chrono::milliseconds(4);

/// How often a wait on a user's thread calls Context::Options::check_interrupt.
inline constexpr auto kInterruptInterval = std::chrono::milliseconds(100);

/// Polls ready() for the time of the policy. Returns whether it became true.
template <class Ready>
bool spin_then_yield(Ready&& ready, const BackoffPolicy& backoff = kBackoffDedicated) {
  if (ready()) return true;
  const auto start = Clock::now();
  while (Clock::now() - start < backoff.spin) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      cpu_relax();
    }
  }
  while (Clock::now() - start < backoff.before_sleep) {
    if (ready()) return true;
    sched_yield();
  }
  return ready();
}

/// What a waiter sleeps on. A wake-up between prepare() and sleep(token) makes sleep() return at
/// once, so the waiter calls prepare(), then checks its condition, then sleeps.
template <class S>
concept Sleeper = requires(S sleeper) {
  sleeper.sleep(sleeper.prepare());
};

/// Sleeps until ready() returns true. Calls give_up() before each sleep; if that returns true,
/// returns ready(), which is checked once more because a peer may have posted its data and then
/// exited normally.
template <Sleeper S, class Ready, class GiveUp>
bool sleep_until(S&& sleeper, Ready&& ready, GiveUp&& give_up) {
  for (;;) {
    const auto token = sleeper.prepare();
    if (ready()) return true;
    if (give_up()) return ready();
    sleeper.sleep(token);
  }
}

/// A futex with a count of its sleepers, so that notify_if_sleeping() costs no system call if
/// nobody sleeps. It may be in shared memory; then only its own process sleeps on it and any
/// process may notify it.
///
/// No wake-up is lost: the sleeper increments `sleepers`, then reads the condition; the notifier
/// writes the condition, then reads `sleepers`; both have a seq_cst fence in between, so at least
/// one of them sees the other's write.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> notifications{0};
  std::atomic<std::uint32_t> sleepers{0};

  /// Call after writing the condition and doorbell_fence(). One fence serves several doorbells.
  void notify_if_sleeping(FutexScope scope = FutexScope::shared, int how_many = INT_MAX) {
    // relaxed: the caller's doorbell_fence() pairs with the one in DoorbellSleeper::prepare()
    if (sleepers.load(std::memory_order_relaxed) != 0) notify(scope, how_many);
  }
  void notify(FutexScope scope = FutexScope::shared, int how_many = INT_MAX) {
    notifications.fetch_add(1, std::memory_order_release);  // pairs with DoorbellSleeper::prepare()
    futex_wake(notifications, how_many, scope);
  }
};

inline void doorbell_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// Sleeps on a doorbell, at most `interval` at a time. `scope` must be that of the notifier.
class DoorbellSleeper {
 public:
  explicit DoorbellSleeper(Doorbell& doorbell, FutexScope scope = FutexScope::shared,
                           Clock::duration interval = kSleepInterval)
      : doorbell_(doorbell), scope_(scope), interval_(interval) {
    // seq_cst, and a fence in prepare(): pairs with doorbell_fence() and notify_if_sleeping()
    doorbell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~DoorbellSleeper() {
    // relaxed: a notifier that still sees this sleeper makes one needless system call
    doorbell_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
  DoorbellSleeper(const DoorbellSleeper&) = delete;
  DoorbellSleeper& operator=(const DoorbellSleeper&) = delete;

  [[nodiscard]] std::uint32_t prepare() const {
    const auto notifications =
        doorbell_.notifications.load(std::memory_order_acquire);  // pairs with notify()
    doorbell_fence();  // orders the increment of `sleepers` before the check of the condition
    return notifications;
  }
  void sleep(std::uint32_t notifications) const {
    futex_wait(doorbell_.notifications, notifications, interval_, scope_);
  }

 private:
  Doorbell& doorbell_;
  FutexScope scope_;
  Clock::duration interval_;
};

template <class Ready, class GiveUp>
bool sleep_until(Doorbell& doorbell, Ready&& ready, GiveUp&& give_up) {
  return sleep_until(DoorbellSleeper(doorbell), ready, give_up);
}

/// The whole policy on a doorbell in shared memory.
template <class Ready, class GiveUp>
bool wait_until(Doorbell& doorbell, Ready&& ready, GiveUp&& give_up,
                const BackoffPolicy& backoff = kBackoffDedicated) {
  return spin_then_yield(ready, backoff) || sleep_until(doorbell, ready, give_up);
}

}  // namespace tccl
