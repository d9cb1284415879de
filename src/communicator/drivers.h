// Threads that run started collectives: a pool that grows whenever all of its threads are busy.
//
// A driver that has begun a collective stays with it to its end and may wait for peers, so no job
// may ever wait for a thread that another job holds: hence no upper limit. Threads are kept for the
// next job. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tccl {

class Drivers {
 public:
  ~Drivers() { stop(); }
  void submit(std::function<void()> job);
  /// Joins all threads. Their jobs must be able to end.
  void stop() noexcept;

 private:
  void main();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  std::size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tccl
