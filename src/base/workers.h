// Threads that help with one large piece of work and never wait for anyone.
//
//   workers.split(bytes, 128 << 10, [&](std::size_t begin, std::size_t count) {
//     std::memcpy(to + begin, from + begin, count);
//   });
//
// The work is cut into parts; the caller and the workers that are free take one after the other
// from a common counter. A worker that is late finds nothing left: it can hold up the caller only
// by the part that it has begun. One split is served at a time; another thread that calls split()
// meanwhile does its work alone. So nobody ever waits for a worker to become free.
//
// Thread-safe, but for stop(), which comes after the last split(). After fork() the child must not
// use or destroy it (it has no threads there).
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

struct WorkerPlan {
  int count = 0;
  std::vector<int> cores;   // of worker 0, 1, ...; the workers beyond its end are not pinned
  std::vector<int> domain;  // where workers that are not pinned may run; empty: as their creator
  bool at_once = false;     // make the threads now, not when the first split needs them
  int rank = -1;            // for messages
};

class Workers {
 public:
  static constexpr std::size_t kGrainsWorthWaking = 16;

  /// Must not throw: it also runs on threads that have nobody to tell.
  using Body = FunctionRef<void(std::size_t begin, std::size_t count)>;

  explicit Workers(WorkerPlan plan);
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Calls `body` for parts that together are [0, count), each once, and returns when all are done.
  /// Parts begin at multiples of `grain` and are at least that long, except for the last. No
  /// allocation; below two grains, or without workers, no more than a call of `body`.
  ///
  /// Workers stay awake for a while (kPatient) and then sleep. To wake one costs more than it helps
  /// with little work, so sleepers are woken from kGrainsWorthWaking grains only, of this split or
  /// of the `whole` of which it is a piece: the pieces that follow find them awake.
  void split(std::size_t count, std::size_t grain, Body body, std::size_t whole = 0) noexcept {
    if (count / grain < 2 || count_.load(std::memory_order_relaxed) == 0) {
      if (count != 0) body(0, count);
    } else {
      split_over_workers(count, grain, body, std::max(count, whole) / grain >= kGrainsWorthWaking);
    }
  }

  /// How many threads may help.
  [[nodiscard]] int count() const noexcept { return count_.load(std::memory_order_relaxed); }

  /// Joins the threads; a later split() works without them.
  void stop() noexcept;

 private:
  struct Job;
  void split_over_workers(std::size_t count, std::size_t grain, Body body,
                          bool wake_sleepers) noexcept;
  void make_threads() noexcept;
  void place(std::size_t index, std::vector<int>* refused);
  void serve() noexcept;
  bool run_part() noexcept;
  void wake(std::size_t workers) noexcept;

  WorkerPlan plan_;
  std::atomic<int> count_;
  /// A split is being served; also guards threads_.
  std::atomic<bool> taken_{false};
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_{false};
  /// (number of the split << 16) | parts that nobody has taken yet. Whoever lowers it owns a part
  /// of that very split, so that split cannot end and job_ cannot have changed.
  alignas(64) std::atomic<std::uint64_t> parts_left_{0};
  std::atomic<Job*> job_{nullptr};
  Bell work_bell_;  // workers sleep on it
  Bell done_bell_;  // the caller does, if a worker needs long for its part
};

}  // namespace tccl
