// Threads that execute asynchronous collectives: a pool that grows whenever all threads are busy.
//
// A thread executes a collective to its end and may wait for peers meanwhile. If a task had to wait
// for a thread that another task occupies, two groups used in opposite order could deadlock; so the
// number of threads has no limit. Idle threads are kept for later tasks. The first thread starts
// with the pool: if the system allows no other, tasks wait for it, and none waits for ever.
// Thread safety: every method may be called from any thread.
#pragma once

#include <functional>
#include <memory>

namespace tccl {

class ThreadPool {
 public:
  /// Throws Error{system} if no thread can be started.
  ThreadPool();
  ~ThreadPool() { stop(); }
  /// Never blocks. If no further thread can be started, the task waits for an idle one.
  void submit(std::function<void()> task);
  /// Joins all threads except the calling one. Every submitted task must be able to finish.
  void stop() noexcept;

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;  // each thread holds a reference: stop() may run on one of them
};

}  // namespace tccl
