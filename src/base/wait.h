// The one way to wait for another rank: spin briefly, then yield, then sleep.
//
// Four ranks on two cores: pure spinning costs milliseconds per exchange, sleeping at once tens of
// microseconds, yielding ten. Nobody spins without bound, so an idle rank uses no CPU.
//
// A thread sleeps only on a Doorbell in its own process's memory. Whoever changes something that
// the thread may be waiting for rings that doorbell. Lost wake-ups cannot happen: the sleeper
// announces itself, *then* looks; the ringer stores, *then* looks for sleepers; both put a
// sequentially consistent fence in between.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/futex.h"

namespace tccl {

struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};

  /// Wakes whoever sleeps. Call after the store that the sleeper waits for; the caller has put
  /// doorbell_fence() between the two (one fence serves many bells).
  void ring_if_sleeping() {
    if (sleepers.load(std::memory_order_relaxed) != 0) ring();
  }
  void ring() {
    rings.fetch_add(1, std::memory_order_release);  // pairs with the load before futex_wait
    futex_wake_all(rings, FutexScope::shared);
  }
};

inline void doorbell_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// How long to look before sleeping.
struct BackoffPolicy {
  Clock::duration spin;
  Clock::duration before_sleep;  // spinning, then yielding
};
/// Every rank can have a core of its own. A yield costs as much as a small collective, so spin for
/// as long as ranks are usually apart.
inline constexpr BackoffPolicy kBackoffDedicated{std::chrono::microseconds(20),
                                                 std::chrono::microseconds(100)};
/// There are more ranks than cores: whoever spins keeps another from running. Whoever sleeps may
/// leave a core idle, which takes tens of microseconds to come back.
inline constexpr BackoffPolicy kBackoffOversubscribed{std::chrono::microseconds(0),
                                                      std::chrono::microseconds(500)};

/// A sleeper looks for dead peers this often: no system call tells it of a death at once, and
/// 250 looks a second cost well under a percent of a core.
inline constexpr auto kSleepInterval = std::chrono::milliseconds(4);

/// How often whoever waits on a user's thread calls Context::Options::poll_interrupt.
inline constexpr auto kInterruptPeriod = std::chrono::milliseconds(100);

/// True once ready(); false if it was not ready within the spinning and yielding time.
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

/// Sleeps until ready(). Calls give_up() now and then; if that returns true and the data is still
/// not there, returns false. (Data first, then death, then data once more: a peer may publish its
/// result and exit normally.)
template <class Ready, class GiveUp>
bool sleep_until(Doorbell& doorbell, Ready&& ready, GiveUp&& give_up) {
  struct Announce {
    Doorbell& doorbell;
    explicit Announce(Doorbell& b) : doorbell(b) {
      doorbell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Announce() { doorbell.sleepers.fetch_sub(1, std::memory_order_relaxed); }
  } announce(doorbell);
  for (;;) {
    const std::uint32_t rings = doorbell.rings.load(std::memory_order_acquire);
    doorbell_fence();  // announce, then look; pairs with the ringer's store, then look
    if (ready()) return true;
    if (give_up()) return ready();
    futex_wait(doorbell.rings, rings, kSleepInterval, FutexScope::shared);
  }
}

template <class Ready, class GiveUp>
bool wait_until(Doorbell& doorbell, Ready&& ready, GiveUp&& give_up,
                const BackoffPolicy& backoff = kBackoffDedicated) {
  return spin_then_yield(ready, backoff) || sleep_until(doorbell, ready, give_up);
}

}  // namespace tccl
