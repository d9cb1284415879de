// The thread that keeps this process's sign of life and watches for the end of others.
// It never waits for a peer and never takes a lock that is held while waiting for one.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "base/fork_guard.h"
#include "bootstrap/liveness.h"

namespace tccl {

class Monitor {
 public:
  /// `on_tick` runs on the monitor thread with every heartbeat and after every death.
  Monitor(LifeSign& life, std::function<void()> on_tick);
  ~Monitor() { stop(); }

  /// Watches a process until its end, or until nobody else holds the peer any more.
  void watch(const std::shared_ptr<Peer>& peer, Fd pidfd);
  /// Says goodbye, lets the mutex go and joins the thread. Idempotent.
  void stop() noexcept;

 private:
  void main(std::promise<void> holding);
  void handle_events(int timeout_ms);
  void forget_dropped_peers();
  void end_watch(std::uint64_t number);
  void drop_in_child() noexcept;

  LifeSign& life_;
  std::function<void()> on_tick_;
  Fd epoll_;
  Fd wake_;
  struct Watched {
    std::weak_ptr<Peer> peer;
    Fd pidfd;
  };
  std::mutex mutex_;  // guards the next two
  std::map<std::uint64_t, Watched> watched_;
  std::uint64_t next_number_ = 1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  ForkHook fork_hook_{mutex_, [this] { drop_in_child(); }};
};

}  // namespace tccl
