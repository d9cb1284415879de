// The thread that keeps this process's sign of life and watches for the end of others.
// It never waits for a peer and never takes a lock that is held while waiting for one.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "bootstrap/liveness.h"

namespace tccl {

class Monitor {
 public:
  /// `on_tick` runs on the monitor thread with every heartbeat and after every death.
  Monitor(LifeSign& life, std::function<void()> on_tick);
  ~Monitor() { stop(); }

  void watch(std::shared_ptr<Peer> peer);
  /// Says goodbye, lets the mutex go and joins the thread. Idempotent.
  void stop() noexcept;
  /// In a forked child: the thread does not exist here.
  void drop_in_child() noexcept;

 private:
  void main(std::promise<void> holding);
  void handle_events(int timeout_ms);

  LifeSign& life_;
  std::function<void()> on_tick_;
  Fd epoll_;
  Fd wake_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Peer>> watched_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tccl
