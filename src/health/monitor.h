// The thread that keeps this process's sign of heartbeat, watches for the end of others and serves
// the descriptors of parts that must answer while nobody calls them (see control.h). It never waits
// for a peer and never takes a lock that is held while waiting for one.
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "base/fork_hook.h"
#include "health/local_process.h"

namespace tccl {

class Monitor {
 public:
  /// `on_tick` runs on the monitor thread with every heartbeat and after every death.
  Monitor(Heartbeat& heartbeat, std::function<void()> on_tick);
  ~Monitor() { stop(); }

  /// Watches a process until its end, or until nobody else holds the peer any more.
  void watch(const std::shared_ptr<LocalProcess>& peer, Fd pidfd);

  /// Calls `on_event` on the monitor thread whenever the descriptor has one of these epoll events.
  /// It must neither block nor throw. Gives the number by which the service can be changed.
  std::uint64_t serve(int fd, std::uint32_t events, std::function<void(std::uint32_t)> on_event);
  void change_service(std::uint64_t number, std::uint32_t events) noexcept;
  /// To be called before the descriptor is closed. Afterwards `on_event` does not run any more: a
  /// call that is under way is waited for (unless it is itself the caller), so hold no lock that it
  /// takes.
  void end_service(std::uint64_t number) noexcept;
  [[nodiscard]] bool is_this_thread() const noexcept {
    return std::this_thread::get_id() == thread_id_;
  }

  /// Says goodbye, lets the mutex go and joins the thread. Idempotent.
  void stop() noexcept;

 private:
  void main(std::promise<void> holding);
  bool handle_events(int timeout_ms);
  bool run_service(std::uint64_t number, std::uint32_t events);
  void note_death(std::uint64_t number);
  void forget_dropped_peers();
  void end_watch(std::uint64_t number);
  void drop_in_child() noexcept;

  Heartbeat& heartbeat_;
  std::function<void()> on_tick_;
  Fd epoll_;
  Fd wake_;
  struct Watched {
    std::weak_ptr<LocalProcess> peer;
    Fd pidfd;
  };
  std::mutex mutex_;  // guards the next
  std::map<std::uint64_t, Watched> watched_;
  struct Service {
    int fd;
    std::function<void(std::uint32_t)> on_event;
  };
  // Guards the next two. Not held across fork(), so it may be taken under a lock that is.
  std::mutex services_mutex_;
  std::map<std::uint64_t, std::shared_ptr<Service>> services_;
  std::uint64_t running_ = 0;  // the service whose callback runs now
  std::condition_variable callback_ended_;
  std::atomic<std::uint64_t> next_number_{1};  // of watched processes and services
  std::atomic<bool> stopping_{false};
  std::thread::id thread_id_;  // written before the constructor ends; thread_ changes in stop()
  std::thread thread_;
  ForkHook fork_hook_{mutex_, [this] { drop_in_child(); }};
};

}  // namespace tccl
