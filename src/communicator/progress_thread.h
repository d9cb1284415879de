// The thread that moves point-to-point data while nobody waits for it.
//
// It never waits for a peer and never runs user code: it looks at each communicator that has sends
// or receives under way and that no thread attends in wait(). While there are any it looks once a
// millisecond (and at once again after something moved); while all of them are attended, less
// often; otherwise it sleeps until kicked, or until a peer progress_signal whose messages nobody
// here has taken. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace tccl {

class P2p;

/// Rises when a peer progress_signal; in shared memory.
using ProgressSignal = std::atomic<std::uint32_t>;

class Progress {
 public:
  explicit Progress(std::shared_ptr<ProgressSignal> progress_signal);
  ~Progress() { stop(); }

  void add(const std::shared_ptr<P2p>& engine);
  /// What else moves only if somebody moves it: messages to other hosts, of collectives that this
  /// rank has finished. Returns whether any are left.
  void set_poll_hook(std::function<bool()> poll_hook);
  /// Something is under way. Costs a system call only if the thread is fast asleep.
  void notify() noexcept;
  void stop() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;  // also held by the thread: it may be the one that calls stop()
  std::thread thread_;
};

}  // namespace tccl
