#include "health/monitor.h"

#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/start_thread.h"
#include "base/system_error.h"
#include "tccl/error.h"

namespace tccl {
namespace {

void init_robust_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

constexpr std::uint64_t kWakeUp =
    0;  // the eventfd of stop(); the ids of processes and handlers start at 1

void add_to_epoll(const Fd& epoll, int fd, std::uint32_t events, std::uint64_t id) {
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_system_error("epoll_ctl");
}

}  // namespace

bool has_robust_mutexes() noexcept {
  robust_list_head* head = nullptr;
  std::size_t bytes = 0;
  return ::syscall(SYS_get_robust_list, 0, &head, &bytes) == 0 && head != nullptr;
}

Monitor::Monitor(ProcessPage& page, std::function<void()> on_heartbeat)
    : page_(page),
      on_heartbeat_(std::move(on_heartbeat)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) throw_system_error("epoll_create1/eventfd");
  add_to_epoll(epoll_, wake_.get(), EPOLLIN, kWakeUp);
  init_robust_mutex(page_.liveness_mutex);
  std::promise<void> mutex_held;
  auto held = mutex_held.get_future();
  thread_ = start_thread("the monitor thread", [this, promise = std::move(mutex_held)]() mutable {
    main(std::move(promise));
  });
  held.wait();  // before another process can see the page
}

void Monitor::watch_process(const std::shared_ptr<LocalProcess>& process, Fd pidfd) {
  if (!pidfd) return;  // then only the mutex word shows its death
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
  add_to_epoll(epoll_, pidfd.get(), EPOLLIN, id);
  watched_[id] = {process, std::move(pidfd)};
}

void Monitor::unwatch_process(std::uint64_t id) {
  const auto found = watched_.find(id);
  if (found == watched_.end()) return;
  // Closing alone would not remove it from epoll: other processes hold the same open file.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.pidfd.get(), nullptr);
  watched_.erase(found);
}

void Monitor::drop_unused() {
  const std::lock_guard lock(mutex_);
  for (auto next = watched_.begin(); next != watched_.end();) {
    const auto& [id, watched] = *next++;
    if (watched.process.expired()) unwatch_process(id);
  }
}

std::uint64_t Monitor::watch_fd(int fd, std::uint32_t events,
                                std::function<void(std::uint32_t)> on_event) {
  const std::uint64_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(handlers_mutex_);
  handlers_[id] = std::make_shared<EventHandler>(EventHandler{fd, std::move(on_event)});
  try {
    add_to_epoll(epoll_, fd, events, id);
  } catch (...) {
    handlers_.erase(id);
    throw;
  }
  return id;
}

void Monitor::change_events(std::uint64_t id, std::uint32_t events) noexcept {
  const std::lock_guard lock(handlers_mutex_);
  const auto found = handlers_.find(id);
  if (found == handlers_.end()) return;
  epoll_event event{.events = events, .data = {.u64 = id}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second->fd, &event);
}

void Monitor::unwatch_fd(std::uint64_t id) noexcept {
  if (id == 0) return;  // watch_fd() was not called
  std::unique_lock lock(handlers_mutex_);
  if (const auto found = handlers_.find(id); found != handlers_.end()) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second->fd, nullptr);
    handlers_.erase(found);
  }
  if (!is_this_thread()) callback_ended_.wait(lock, [&] { return running_ != id; });
}

/// False if there is no such handler.
bool Monitor::run_handler(std::uint64_t id, std::uint32_t events) {
  std::shared_ptr<EventHandler> handler;  // keeps it alive if its callback calls unwatch_fd()
  {
    const std::lock_guard lock(handlers_mutex_);
    const auto found = handlers_.find(id);
    if (found == handlers_.end()) return false;
    handler = found->second;
    running_ = id;
  }
  handler->on_event(events);
  const std::lock_guard lock(handlers_mutex_);
  running_ = 0;
  callback_ended_.notify_all();
  return true;
}

void Monitor::main(std::promise<void> mutex_held) {
  pthread_mutex_lock(&page_.liveness_mutex);
  thread_id_ = std::this_thread::get_id();
  mutex_held.set_value();
  Deadline next_beat = Clock::now() + kLocalHeartbeatInterval;
  while (!stopping_.load(std::memory_order_acquire)) {  // pairs with the release in stop()
    const bool exited = handle_events(poll_timeout(next_beat));
    if (!exited && Clock::now() < next_beat) continue;
    next_beat = Clock::now() + kLocalHeartbeatInterval;
    page_.heartbeats.fetch_add(1, std::memory_order_relaxed);  // read by LocalProcess::heartbeats()
    drop_unused();
    on_heartbeat_();
  }
  pthread_mutex_unlock(&page_.liveness_mutex);
}

/// True if a watched process has exited.
bool Monitor::handle_events(int timeout_ms) {
  epoll_event events[16];
  const int count = ::epoll_wait(epoll_.get(), events, 16, timeout_ms);
  bool exited = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[i].data.u64;
    if (id == kWakeUp || run_handler(id, events[i].events)) continue;
    mark_exited(id);
    exited = true;
  }
  return exited;
}

void Monitor::mark_exited(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = watched_.find(id); found != watched_.end())
    if (const auto process = found->second.process.lock()) process->mark_exited();
  unwatch_process(id);
}

void Monitor::stop() noexcept {
  if (!thread_.joinable()) return;
  page_.departed.store(1, std::memory_order_release);  // pairs with has_departed()
  stopping_.store(true, std::memory_order_release);    // pairs with the acquire in main()
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  thread_.join();
}

/// The child has no monitor thread and must not keep the descriptors open.
void Monitor::close_in_child() noexcept {
  for (auto& [id, watched] : watched_) watched.pidfd.reset();
  epoll_.reset();
  wake_.reset();
}

}  // namespace tccl
