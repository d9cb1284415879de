// ProgressThread: moves point-to-point data, and network messages of finished collectives, while no
// thread waits for them.
//
// It never waits for a peer and never runs user code. It polls the engines (P2p) that have sends or
// receives outstanding and no thread in wait(): once a millisecond, and immediately again after
// something moved; less often while all engines have waiters. With nothing outstanding it sleeps
// until notify(), or until a peer wakes it because nobody here takes the peer's messages. It also sends
// posted collectives that nobody waits for to the thread pool.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace tccl {

class OperationQueue;
class P2p;

/// In shared memory. A peer increments it to wake the thread: LocalProcess::wake_progress_thread().
using ProgressSignal = std::atomic<std::uint32_t>;

class ProgressThread {
 public:
  explicit ProgressThread(std::shared_ptr<ProgressSignal> signal);
  ~ProgressThread() { stop(); }

  void add(const std::shared_ptr<P2p>& engine);
  void add(const std::shared_ptr<OperationQueue>& queue);
  /// Called in each turn of the thread. Returns whether messages are in flight.
  void set_progress_network(std::function<bool()> progress_network);
  /// Call after starting something that needs progress. A system call only if the thread sleeps.
  void notify() noexcept;
  void stop() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;  // also held by the thread: stop() may be called on it
  std::thread thread_;
};

}  // namespace tccl
