#include "base/worker_pool.h"

#include <pthread.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "base/cpu_set.h"
#include "base/format.h"
#include "base/log.h"

namespace tccl {
namespace {

/// More parts than threads, so that a late or slow worker takes fewer of them.
constexpr std::size_t kPartsPerThread = 8;
constexpr std::size_t kMaxParts = 0xffff;

std::size_t parts_in(std::uint64_t word) { return word & kMaxParts; }

/// A worker is woken by the doorbell alone: it has no peer whose death it would have to detect.
constexpr auto kWorkerSleepInterval = std::chrono::hours(1);

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return a / b + (a % b != 0); }

}  // namespace

/// One parallel_for, on the caller's stack.
struct WorkerPool::Loop {
  Body body;
  std::size_t count;
  std::size_t part_size;  // of each part except the last
  std::size_t parts;
  std::atomic<std::size_t> finished{0};

  void run(std::size_t index) noexcept {
    const std::size_t begin = index * part_size;
    body(begin, index + 1 == parts ? count - begin : part_size);
    // release: pairs with is_finished(). From here on *this may no longer exist.
    finished.fetch_add(1, std::memory_order_release);
  }
  [[nodiscard]] bool is_finished() const {
    return finished.load(std::memory_order_acquire) == parts;  // pairs with run()
  }
};

WorkerPool::WorkerPool(WorkerPoolOptions options)
    : options_(std::move(options)), count_(options_.count) {
  if (options_.start_at_once && options_.count > 0) start_threads();
}

void WorkerPool::parallel_for_workers(std::size_t count, std::size_t grain_size, Body body,
                                      bool wake_sleepers) noexcept {
  // acquire: pairs with the release store at the end
  if (busy_.exchange(true, std::memory_order_acquire)) return body(0, count);
  if (threads_.empty()) start_threads();
  const std::size_t grains = count / grain_size;  // the remainder belongs to the last part
  const std::size_t max_parts = std::min((threads_.size() + 1) * kPartsPerThread, kMaxParts);
  const std::size_t grains_per_part = divide_up(grains, max_parts);
  Loop loop{body, count, grains_per_part * grain_size, divide_up(grains, grains_per_part)};
  loop_.store(&loop, std::memory_order_relaxed);  // published by the release store of parts_left_
  const std::uint64_t sequence = (parts_left_.load(std::memory_order_relaxed) >> 16) + 1;
  parts_left_.store(sequence << 16 | loop.parts,
                    std::memory_order_release);  // pairs with run_part()
  if (wake_sleepers) {
    doorbell_fence();  // pairs with the sleeper in run_worker()
    work_doorbell_.notify_if_sleeping(FutexScope::local, static_cast<int>(loop.parts - 1));
  }
  while (run_part()) {
  }
  wait_until(
      done_doorbell_, [&] { return loop.is_finished(); }, [] { return false; });
  busy_.store(false, std::memory_order_release);  // pairs with the exchange above
}

bool WorkerPool::run_part() noexcept {
  // acquire here and below: pairs with the store in parallel_for_workers()
  std::uint64_t seen = parts_left_.load(std::memory_order_acquire);
  while (parts_in(seen) != 0) {
    Loop* const loop = loop_.load(std::memory_order_relaxed);  // valid if the exchange succeeds
    if (parts_left_.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire)) {
      loop->run(loop->parts - parts_in(seen));
      return true;
    }
  }
  return false;
}

void WorkerPool::run_worker() noexcept {
  const auto has_work = [this] {
    return parts_in(parts_left_.load(std::memory_order_relaxed)) != 0 ||  // run_part() acquires
           stopping_.load(std::memory_order_acquire);                     // pairs with stop()
  };
  for (;;) {
    bool has_run = false;
    while (run_part()) has_run = true;
    if (has_run) {
      doorbell_fence();  // pairs with the sleeper of done_doorbell_ in wait_until()
      done_doorbell_.notify_if_sleeping();
    }
    if (stopping_.load(std::memory_order_acquire)) return;  // pairs with stop()
    if (spin_then_yield(has_work)) continue;
    bool has_slept = false;  // after a wake-up, poll again before the next sleep
    sleep_until(DoorbellSleeper(work_doorbell_, FutexScope::local, kWorkerSleepInterval), has_work,
                [&] { return std::exchange(has_slept, true); });
  }
}

void WorkerPool::start_threads() noexcept {
  try {
    threads_.reserve(static_cast<std::size_t>(options_.count));
    for (std::size_t i = 0; i < static_cast<std::size_t>(options_.count); ++i) {
      threads_.emplace_back([this] { run_worker(); });
      name_and_pin(i);
    }
  } catch (const std::exception& error) {
    log(LogLevel::warn, {.rank = options_.rank, .group = options_.group},
        formatted("only {} of {} worker threads could be started: {}", threads_.size(),
                  options_.count, error.what()));
  }
  if (threads_.empty()) count_.store(0, std::memory_order_relaxed);
}

void WorkerPool::name_and_pin(std::size_t index) {
  const pthread_t thread = threads_[index].native_handle();
  char name[16];  // the kernel's limit
  std::snprintf(name, sizeof name, "ccl-worker-%zu", index);
  ::pthread_setname_np(thread, name);
  if (index < options_.cpus.size() && pin(thread, {&options_.cpus[index], 1})) return;
  pin(thread, options_.unpinned_cpus);  // the creating thread may be bound to one CPU, by OpenMP
}

void WorkerPool::stop() noexcept {
  stopping_.store(true, std::memory_order_release);  // pairs with run_worker()
  count_.store(0, std::memory_order_relaxed);
  doorbell_fence();  // pairs with the sleeper in run_worker()
  work_doorbell_.notify(FutexScope::local);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace tccl
