// Threads that run started collectives: a pool that grows whenever all of its threads are busy.
//
// A driver that has begun a collective stays with it to its end and may wait for peers, so no job
// may ever wait for a thread that another job holds: hence no upper limit. Threads are kept for the
// next job. Thread-safe.
#pragma once

#include <functional>
#include <memory>

namespace tccl {

class ThreadPool {
 public:
  ThreadPool();
  ~ThreadPool() { stop(); }
  /// If no thread can be made the job stays queued for the next one that is free.
  void submit(std::function<void()> job);
  /// Joins all threads (but the calling one). Their jobs must be able to end.
  void stop() noexcept;

 private:
  struct Pool;
  std::shared_ptr<Pool> pool_;  // also held by each thread: stop() may be called on one of them
};

}  // namespace tccl
