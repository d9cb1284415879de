#include "communicator/progress.h"

#include <sched.h>

namespace tccl {
namespace {

constexpr auto kNap = std::chrono::milliseconds(1);
/// After something moved, more is likely to follow at once.
constexpr auto kStayAwake = std::chrono::microseconds(200);
/// Traffic comes in bursts: within this time a new operation needs no kick.
constexpr auto kStayAlert = std::chrono::milliseconds(100);
constexpr auto kLongSleep = std::chrono::seconds(1);

}  // namespace

void Progress::add(const std::shared_ptr<P2p>& engine) {
  const std::lock_guard lock(mutex_);
  std::erase_if(engines_, [](const auto& known) { return known.expired(); });
  engines_.push_back(engine);
}

void Progress::kick() noexcept {
  std::atomic_thread_fence(
      std::memory_order_seq_cst);  // operation stored, then look; pairs with main
  if (!fast_asleep_.load(std::memory_order_relaxed)) return;
  kicks_.fetch_add(1, std::memory_order_release);
  futex_wake_all(kicks_, FutexScope::local);
}

void Progress::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  kicks_.fetch_add(1, std::memory_order_release);
  futex_wake_all(kicks_, FutexScope::local);
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

void Progress::main() {
  Clock::time_point last_moved;
  Clock::time_point last_busy;
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::uint32_t kicks = kicks_.load(std::memory_order_acquire);
    bool moved = false;
    const bool busy = look_at_all(&moved);
    const auto now = Clock::now();
    if (moved) last_moved = now;
    if (busy) last_busy = now;
    if (now - last_moved < kStayAwake) {
      sched_yield();
    } else if (now - last_busy < kStayAlert) {
      futex_wait(kicks_, kicks, kNap, FutexScope::local);
    } else {
      fast_asleep_.store(true, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // announce, then look once more
      if (!look_at_all(&moved)) futex_wait(kicks_, kicks, kLongSleep, FutexScope::local);
      fast_asleep_.store(false, std::memory_order_relaxed);
    }
  }
}

bool Progress::look_at_all(bool* moved) {
  std::vector<std::shared_ptr<P2p>> engines;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& known : engines_)
      if (auto engine = known.lock(); engine && engine->has_outstanding())
        engines.push_back(std::move(engine));
  }
  for (const auto& engine : engines)
    if (!engine->is_attended()) *moved |= engine->advance(true);
  return !engines.empty();
}

}  // namespace tccl
