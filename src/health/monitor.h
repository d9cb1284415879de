// The monitor thread of a process: increments its heartbeat counter, watches the pidfds of other
// processes, and handles events of descriptors while no call is active (see control_plane.h). It
// never waits for a peer and never takes a lock that is held while waiting for one.
//
//   Monitor monitor(page, [&] { on_heartbeat(); });
//   auto id = monitor.watch_fd(listener.get(), EPOLLIN, [&](std::uint32_t) { accept(); });
//
// Thread safety: all methods may be called concurrently, but only one thread calls stop().
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

/// Whether this kernel marks the robust mutexes of a thread that dies (set_robust_list).
bool has_robust_mutexes() noexcept;

class Monitor {
 public:
  /// `on_heartbeat` runs on the monitor thread with every heartbeat and when a watched process
  /// exits.
  Monitor(ProcessPage& page, std::function<void()> on_heartbeat);
  ~Monitor() { stop(); }

  /// Watches a process until it exits, or until `process` is not in use any more.
  void watch_process(const std::shared_ptr<LocalProcess>& process, Fd pidfd);

  /// Calls `on_event` on the monitor thread whenever the descriptor has one of these epoll events.
  /// It must neither block nor throw. Returns the id of this handler.
  std::uint64_t watch_fd(int fd, std::uint32_t events, std::function<void(std::uint32_t)> on_event);
  void change_events(std::uint64_t id, std::uint32_t events) noexcept;
  /// Call it before closing the descriptor. It waits for a running `on_event` (unless called from
  /// there), so the caller must hold no lock that `on_event` takes. Afterwards `on_event` does not
  /// run.
  void unwatch_fd(std::uint64_t id) noexcept;
  [[nodiscard]] bool is_this_thread() const noexcept {
    return std::this_thread::get_id() == thread_id_;
  }

  /// Marks this process as departed, releases the mutex and joins the thread. Idempotent.
  void stop() noexcept;

 private:
  void main(std::promise<void> mutex_held);
  bool handle_events(int timeout_ms);
  bool run_handler(std::uint64_t id, std::uint32_t events);
  void mark_exited(std::uint64_t id);
  void drop_unused();
  void unwatch_process(std::uint64_t id);
  void close_in_child() noexcept;

  ProcessPage& page_;
  std::function<void()> on_heartbeat_;
  Fd epoll_;
  Fd wake_;
  struct Watched {
    std::weak_ptr<LocalProcess> process;
    Fd pidfd;
  };
  std::mutex mutex_;  // guards watched_
  std::map<std::uint64_t, Watched> watched_;
  struct EventHandler {
    int fd;
    std::function<void(std::uint32_t)> on_event;
  };
  // Guards handlers_ and running_. Not held across fork(), so it may be taken under a lock that is.
  std::mutex handlers_mutex_;
  std::map<std::uint64_t, std::shared_ptr<EventHandler>> handlers_;
  std::uint64_t running_ = 0;  // the handler whose callback is running
  std::condition_variable callback_ended_;
  std::atomic<std::uint64_t> next_id_{1};  // of watched processes and handlers; relaxed
  std::atomic<bool> stopping_{false};
  std::thread::id thread_id_;  // written before the constructor returns; stop() changes thread_
  std::thread thread_;
  ForkHook fork_hook_{mutex_, [this] { close_in_child(); }};
};

}  // namespace tccl
