// The one way to wait for another rank: spin briefly, then yield, then sleep.
//
// Four ranks on two cores: pure spinning costs milliseconds per exchange, sleeping at once tens of
// microseconds, yielding ten. Nobody spins without bound, so an idle rank uses no CPU.
//
// A thread sleeps only on a Bell in its own process's memory. Whoever changes something that the
// thread may be waiting for rings that bell. Lost wake-ups cannot happen: the sleeper announces
// itself, *then* looks; the ringer stores, *then* looks for sleepers; both put a sequentially
// consistent fence in between.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/futex.h"

namespace tccl {

struct alignas(64) Bell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};

  /// Wakes whoever sleeps. Call after the store that the sleeper waits for; the caller has put
  /// ring_fence() between the two (one fence serves many bells).
  void ring_if_asleep() {
    if (sleepers.load(std::memory_order_relaxed) != 0) ring();
  }
  void ring() {
    rings.fetch_add(1, std::memory_order_release);  // pairs with the load before futex_wait
    futex_wake_all(rings, FutexScope::shared);
  }
};

inline void ring_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// How long to look before sleeping.
struct Patience {
  Clock::duration spin;
  Clock::duration before_sleep;  // spinning, then yielding
};
/// Every rank can have a core of its own. A yield costs as much as a small collective, so spin for
/// as long as ranks are usually apart.
inline constexpr Patience kPatient{std::chrono::microseconds(20), std::chrono::microseconds(100)};
/// There are more ranks than cores: whoever spins keeps another from running. Whoever sleeps may
/// leave a core idle, which takes tens of microseconds to come back.
inline constexpr Patience kCrowded{std::chrono::microseconds(0), std::chrono::microseconds(500)};

/// A sleeper looks for dead peers this often: no system call tells it of a death at once, and
/// 250 looks a second cost well under a percent of a core.
inline constexpr auto kSleepSlice = std::chrono::milliseconds(4);

/// How often whoever waits on a user's thread calls Context::Options::poll_interrupt.
inline constexpr auto kInterruptPeriod = std::chrono::milliseconds(100);

/// True once ready(); false if it was not ready within the spinning and yielding time.
template <class Ready>
bool wait_briefly(Ready&& ready, const Patience& patience = kPatient) {
  if (ready()) return true;
  const auto start = Clock::now();
  while (Clock::now() - start < patience.spin) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      cpu_relax();
    }
  }
  while (Clock::now() - start < patience.before_sleep) {
    if (ready()) return true;
    sched_yield();
  }
  return ready();
}

/// Sleeps until ready(). Calls give_up() now and then; if that returns true and the data is still
/// not there, returns false. (Data first, then death, then data once more: a peer may publish its
/// result and exit normally.)
template <class Ready, class GiveUp>
bool sleep_until(Bell& bell, Ready&& ready, GiveUp&& give_up) {
  struct Announce {
    Bell& bell;
    explicit Announce(Bell& b) : bell(b) { bell.sleepers.fetch_add(1, std::memory_order_seq_cst); }
    ~Announce() { bell.sleepers.fetch_sub(1, std::memory_order_relaxed); }
  } announce(bell);
  for (;;) {
    const std::uint32_t rings = bell.rings.load(std::memory_order_acquire);
    ring_fence();  // announce, then look; pairs with the ringer's store, then look
    if (ready()) return true;
    if (give_up()) return ready();
    futex_wait(bell.rings, rings, kSleepSlice, FutexScope::shared);
  }
}

template <class Ready, class GiveUp>
bool wait_until(Bell& bell, Ready&& ready, GiveUp&& give_up, const Patience& patience = kPatient) {
  return wait_briefly(ready, patience) || sleep_until(bell, ready, give_up);
}

}  // namespace tccl
