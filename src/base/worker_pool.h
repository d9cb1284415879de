// Worker threads that share one large copy or reduction with the calling thread. A worker never
// waits for a peer rank.
//
//   workers.parallel_for(bytes, 128 << 10, [&](std::size_t begin, std::size_t count) {
//     std::memcpy(to + begin, from + begin, count);
//   });
//
// The range is divided into parts. The caller and the workers take parts from a shared counter
// until none is left, so a slow worker delays the caller by at most the part it has started. The
// pool runs one parallel_for at a time; a thread that calls parallel_for() meanwhile executes its
// whole range itself. So no caller ever waits for a worker to become free.
//
// After fork() the child must neither use nor destroy the pool: its threads do not exist there.
// Thread safety: any thread may call any method but stop(), during which no parallel_for() may run.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "base/wait.h"

namespace tccl {

struct WorkerPoolOptions {
  int count = 0;
  /// CPU of worker 0, 1, ... A worker without an entry, or whose CPU is unavailable, is not pinned.
  std::vector<int> cpus;
  std::vector<int> unpinned_cpus;  // of workers that are not pinned; empty: those of the creator
  bool start_at_once = false;      // start the threads in the constructor, not at the first use
  int rank = -1;                   // for log messages, as is the next
  std::string group = "-";         // in which the process has that rank
};

class WorkerPool {
 public:
  static constexpr std::size_t kMinGrainsToWake = 16;

  /// Must not throw: it also runs on worker threads, which have no caller to report to.
  using Body = FunctionRef<void(std::size_t begin, std::size_t count)>;

  explicit WorkerPool(WorkerPoolOptions options);
  ~WorkerPool() { stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Calls `body` once for each part of [0, count) and returns when all parts are done. Parts start
  /// at multiples of `grain_size` and are at least that long, except the last. Does not allocate;
  /// with less than twice `grain_size`, or without workers, it only calls `body`.
  ///
  /// Workers poll for a while (kBackoffDedicated) and then sleep. Waking one pays only for large
  /// ranges: sleeping workers are woken if this range, or the operation of `total_count` of which
  /// it is a chunk, has at least kMinGrainsToWake grains. They are then awake for the chunks that
  /// follow.
  void parallel_for(std::size_t count, std::size_t grain_size, Body body,
                    std::size_t total_count = 0) noexcept {
    // Relaxed: a pool without threads is served by the caller.
    if (count / grain_size < 2 || count_.load(std::memory_order_relaxed) == 0) {
      if (count != 0) body(0, count);
    } else {
      parallel_for_workers(count, grain_size, body,
                           std::max(count, total_count) / grain_size >= kMinGrainsToWake);
    }
  }

  /// Number of worker threads.
  [[nodiscard]] int count() const noexcept { return count_.load(std::memory_order_relaxed); }

  /// Joins the threads; a later parallel_for() runs on the caller alone.
  void stop() noexcept;

 private:
  struct Loop;
  void parallel_for_workers(std::size_t count, std::size_t grain_size, Body body,
                            bool wake_sleepers) noexcept;
  void start_threads() noexcept;
  void name_and_pin(std::size_t index);
  void run_worker() noexcept;
  bool run_part() noexcept;

  WorkerPoolOptions options_;
  std::atomic<int> count_;  // relaxed: a hint
  /// A parallel_for is running; also guards threads_. parallel_for_workers() acquires and releases.
  std::atomic<bool> busy_{false};
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_{false};  // stop() releases, run_worker() acquires
  /// (sequence number of the parallel_for << 16) | number of parts not yet taken. A thread that
  /// decrements it owns a part of that parallel_for, which therefore cannot return: loop_ is valid.
  alignas(64) std::atomic<std::uint64_t> parts_left_{0};
  std::atomic<Loop*> loop_{nullptr};
  Doorbell work_doorbell_;  // workers sleep on it
  Doorbell done_doorbell_;  // the caller sleeps on it while workers finish their last parts
};

}  // namespace tccl
