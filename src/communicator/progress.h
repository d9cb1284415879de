// The thread that moves point-to-point data while nobody waits for it.
//
// It never waits for a peer: it looks at each communicator that has sends or receives under way and
// that no thread attends in wait(). While there are any it looks once a millisecond (and at once
// again after something moved); otherwise it sleeps until kicked. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "communicator/p2p.h"

namespace tccl {

class Progress {
 public:
  Progress() : thread_([this] { main(); }) {}
  ~Progress() { stop(); }

  void add(const std::shared_ptr<P2p>& engine);
  /// Something is under way. Costs a system call only if the thread is fast asleep.
  void kick() noexcept;
  void stop() noexcept;

 private:
  void main();
  /// Returns whether anything is under way; sets `moved` if something moved.
  bool look_at_all(bool* moved);

  std::mutex mutex_;
  std::vector<std::weak_ptr<P2p>> engines_;
  std::atomic<std::uint32_t> kicks_{0};
  std::atomic<bool> fast_asleep_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tccl
