// Threads that help with one large piece of work and never wait for anyone.
//
//   workers.parallel_for(bytes, 128 << 10, [&](std::size_t begin, std::size_t count) {
//     std::memcpy(to + begin, from + begin, count);
//   });
//
// The work is cut into parts; the caller and the workers that are free take one after the other
// from a common counter. A worker that is late finds nothing left: it can hold up the caller only
// by the part that it has begun. One parallel_for is served at a time; another thread that calls
// parallel_for() meanwhile does its work alone. So nobody ever waits for a worker to become free.
//
// Thread-safe, but for stop(), which comes after the last parallel_for(). After fork() the child
// must not use or destroy it (it has no threads there).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/function_ref.h"
#include "base/wait.h"

namespace tccl {

struct WorkerPoolOptions {
  int count = 0;
  std::vector<int> cores;      // of worker 0, 1, ...; the workers beyond its end are not pinned
  std::vector<int> domain;     // where workers that are not pinned may run; empty: as their creator
  bool start_eagerly = false;  // make the threads now, not when the first parallel_for needs them
  int rank = -1;               // for messages
};

class WorkerPool {
 public:
  static constexpr std::size_t kMinGrainsToWake = 16;

  /// Must not throw: it also runs on threads that have nobody to tell.
  using Body = FunctionRef<void(std::size_t begin, std::size_t count)>;

  explicit WorkerPool(WorkerPoolOptions plan);
  ~WorkerPool() { stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Calls `body` for parts that together are [0, count), each once, and returns when all are done.
  /// Parts begin at multiples of `grain` and are at least that long, except for the last. No
  /// allocation; below two grains, or without workers, no more than a call of `body`.
  ///
  /// WorkerPool stay awake for a while (kBackoffDedicated) and then sleep. To wake one costs more
  /// than it helps with little work, so sleepers are woken from kMinGrainsToWake grains only, of
  /// this parallel_for or of the `whole` of which it is a piece: the pieces that follow find them
  /// awake.
  void parallel_for(std::size_t count, std::size_t grain, Body body,
                    std::size_t whole = 0) noexcept {
    if (count / grain < 2 || count_.load(std::memory_order_relaxed) == 0) {
      if (count != 0) body(0, count);
    } else {
      parallel_for_workers(count, grain, body, std::max(count, whole) / grain >= kMinGrainsToWake);
    }
  }

  /// How many threads may help.
  [[nodiscard]] int count() const noexcept { return count_.load(std::memory_order_relaxed); }

  /// Joins the threads; a later parallel_for() works without them.
  void stop() noexcept;

 private:
  struct Job;
  void parallel_for_workers(std::size_t count, std::size_t grain, Body body,
                            bool wake_sleepers) noexcept;
  void make_threads() noexcept;
  void place(std::size_t index, std::vector<int>* refused);
  void serve() noexcept;
  bool run_part() noexcept;
  void wake(std::size_t workers) noexcept;

  WorkerPoolOptions plan_;
  std::atomic<int> count_;
  /// A parallel_for is being served; also guards threads_.
  std::atomic<bool> taken_{false};
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_{false};
  /// (number of the parallel_for << 16) | parts that nobody has taken yet. Whoever lowers it owns a
  /// part of that very parallel_for, so that parallel_for cannot end and job_ cannot have changed.
  alignas(64) std::atomic<std::uint64_t> parts_left_{0};
  std::atomic<Job*> job_{nullptr};
  Doorbell work_doorbell_;  // workers sleep on it
  Doorbell done_doorbell_;  // the caller does, if a worker needs long for its part
};

}  // namespace tccl
