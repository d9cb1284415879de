#include "base/worker_pool.h"

#include <pthread.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "base/cores.h"
#include "base/format.h"
#include "base/log.h"

namespace tccl {
namespace {

/// More parts than threads: a worker that comes late, or is slow, then takes fewer of them.
constexpr std::size_t kPartsPerThread = 8;
constexpr std::size_t kMaxParts = 0xffff;

std::size_t parts_in(std::uint64_t word) { return word & kMaxParts; }

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return a / b + (a % b != 0); }

}  // namespace

/// Lives on the caller's stack while its parts are worked on.
struct WorkerPool::Job {
  Body body;
  std::size_t count;
  std::size_t part;  // length of each but the last
  std::size_t parts;
  std::atomic<std::size_t> finished{0};

  void run(std::size_t index) noexcept {
    const std::size_t begin = index * part;
    body(begin, index + 1 == parts ? count - begin : part);
    finished.fetch_add(1,
                       std::memory_order_release);  // pairs with is_finished(); *this may be gone
  }
  [[nodiscard]] bool is_finished() const {
    return finished.load(std::memory_order_acquire) == parts;
  }
};

WorkerPool::WorkerPool(WorkerPoolOptions plan) : plan_(std::move(plan)), count_(plan_.count) {
  if (plan_.start_eagerly && plan_.count > 0) make_threads();
}

void WorkerPool::parallel_for_workers(std::size_t count, std::size_t grain, Body body,
                                      bool wake_sleepers) noexcept {
  if (taken_.exchange(true, std::memory_order_acquire)) return body(0, count);
  if (threads_.empty()) make_threads();
  const std::size_t grains = count / grain;  // what remains goes with the last part
  const std::size_t most = std::min((threads_.size() + 1) * kPartsPerThread, kMaxParts);
  const std::size_t grains_per_part = divide_up(grains, most);
  Job job{body, count, grains_per_part * grain, divide_up(grains, grains_per_part)};
  job_.store(&job, std::memory_order_relaxed);
  const std::uint64_t number = (parts_left_.load(std::memory_order_relaxed) >> 16) + 1;
  parts_left_.store(number << 16 | job.parts, std::memory_order_release);  // pairs with run_part()
  if (wake_sleepers) wake(job.parts - 1);
  while (run_part()) {
  }
  wait_until(
      done_doorbell_, [&] { return job.is_finished(); }, [] { return false; });
  taken_.store(false, std::memory_order_release);  // pairs with the exchange above
}

bool WorkerPool::run_part() noexcept {
  std::uint64_t seen = parts_left_.load(std::memory_order_acquire);
  while (parts_in(seen) != 0) {
    Job* const job =
        job_.load(std::memory_order_relaxed);  // the right one if the next line succeeds
    if (parts_left_.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire)) {
      job->run(job->parts - parts_in(seen));
      return true;
    }
  }
  return false;
}

void WorkerPool::wake(std::size_t workers) noexcept {
  doorbell_fence();  // stored, then look; pairs with serve()
  if (work_doorbell_.sleepers.load(std::memory_order_relaxed) == 0) return;
  work_doorbell_.rings.fetch_add(1, std::memory_order_release);  // pairs with the load in serve()
  futex_wake(work_doorbell_.rings, static_cast<int>(workers), FutexScope::local);
}

void WorkerPool::serve() noexcept {
  const auto has_work = [this] {
    return parts_in(parts_left_.load(std::memory_order_relaxed)) != 0 ||
           stopping_.load(std::memory_order_acquire);  // pairs with stop()
  };
  for (;;) {
    bool helped = false;
    while (run_part()) helped = true;
    if (helped) {
      doorbell_fence();  // finished, then look; pairs with wait_until()
      done_doorbell_.ring_if_sleeping();
    }
    if (stopping_.load(std::memory_order_acquire)) return;
    if (spin_then_yield(has_work)) continue;
    work_doorbell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t rings = work_doorbell_.rings.load(std::memory_order_acquire);
    doorbell_fence();  // announced, then look; pairs with wake()
    if (!has_work())
      futex_wait(work_doorbell_.rings, rings, std::chrono::hours(1), FutexScope::local);
    work_doorbell_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

void WorkerPool::make_threads() noexcept {
  std::vector<int> refused;
  try {
    threads_.reserve(static_cast<std::size_t>(plan_.count));
    for (std::size_t i = 0; i < static_cast<std::size_t>(plan_.count); ++i) {
      threads_.emplace_back([this] { serve(); });
      place(i, &refused);
    }
  } catch (const std::exception& error) {
    log_warning(formatted("only {} of {} worker threads could be made: {}", threads_.size(),
                          plan_.count, error.what()),
                plan_.rank);
  }
  if (threads_.empty()) count_.store(0, std::memory_order_relaxed);
  static std::atomic<bool> warned{false};  // ranks as threads, or one context after another
  if (!refused.empty() && !warned.exchange(true, std::memory_order_relaxed))
    log_warning(formatted("CCL_WORKER_AFFINITY: this process has no core {}; the workers meant for "
                          "it are not pinned",
                          cores_text(refused)),
                plan_.rank);
}

void WorkerPool::place(std::size_t index, std::vector<int>* refused) {
  const pthread_t thread = threads_[index].native_handle();
  char name[16];  // the kernel's limit
  std::snprintf(name, sizeof name, "ccl-worker-%zu", index);
  ::pthread_setname_np(thread, name);
  if (index < plan_.cores.size()) {
    if (pin(thread, {&plan_.cores[index], 1})) return;
    refused->push_back(plan_.cores[index]);
  }
  pin(thread, plan_.domain);  // whoever made the thread may itself be bound to one core, by OpenMP
}

void WorkerPool::stop() noexcept {
  stopping_.store(true, std::memory_order_release);  // pairs with serve()
  count_.store(0, std::memory_order_relaxed);
  doorbell_fence();
  work_doorbell_.rings.fetch_add(1, std::memory_order_release);
  futex_wake_all(work_doorbell_.rings, FutexScope::local);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace tccl
