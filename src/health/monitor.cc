#include "health/monitor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
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

constexpr std::uint64_t kWakeUp = 0;  // the eventfd of stop(); processes and services start at 1

void add_to_epoll(const Fd& epoll, int fd, std::uint32_t events, std::uint64_t number) {
  epoll_event event{.events = events, .data = {.u64 = number}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_system_error("epoll_ctl");
}

}  // namespace

Monitor::Monitor(Heartbeat& heartbeat, std::function<void()> on_tick)
    : heartbeat_(heartbeat),
      on_tick_(std::move(on_tick)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) throw_system_error("epoll_create1/eventfd");
  add_to_epoll(epoll_, wake_.get(), EPOLLIN, kWakeUp);
  init_robust_mutex(heartbeat_.alive);
  std::promise<void> mutex_held;
  auto held = mutex_held.get_future();
  thread_ =
      std::thread([this, promise = std::move(mutex_held)]() mutable { main(std::move(promise)); });
  held.wait();  // before another process can see the Heartbeat
}

void Monitor::watch(const std::shared_ptr<LocalProcess>& process, Fd pidfd) {
  if (!pidfd) return;  // then only the mutex word shows its death
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = next_number_.fetch_add(1, std::memory_order_relaxed);
  add_to_epoll(epoll_, pidfd.get(), EPOLLIN, number);
  watched_[number] = {process, std::move(pidfd)};
}

void Monitor::end_watch(std::uint64_t number) {
  const auto found = watched_.find(number);
  if (found == watched_.end()) return;
  // Closing alone would not remove it from epoll: other processes hold the same open file.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.pidfd.get(), nullptr);
  watched_.erase(found);
}

void Monitor::drop_unused() {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> unused;
  for (const auto& [number, watched] : watched_)
    if (watched.process.expired()) unused.push_back(number);
  for (const std::uint64_t number : unused) end_watch(number);
}

std::uint64_t Monitor::serve(int fd, std::uint32_t events,
                             std::function<void(std::uint32_t)> on_event) {
  const std::uint64_t number = next_number_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(services_mutex_);
  services_[number] = std::make_shared<Service>(Service{fd, std::move(on_event)});
  try {
    add_to_epoll(epoll_, fd, events, number);
  } catch (const Error&) {
    services_.erase(number);
    throw;
  }
  return number;
}

void Monitor::change_service(std::uint64_t number, std::uint32_t events) noexcept {
  const std::lock_guard lock(services_mutex_);
  const auto found = services_.find(number);
  if (found == services_.end()) return;
  epoll_event event{.events = events, .data = {.u64 = number}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second->fd, &event);
}

void Monitor::end_service(std::uint64_t number) noexcept {
  if (number == 0) return;  // serve() was not called
  std::unique_lock lock(services_mutex_);
  if (const auto found = services_.find(number); found != services_.end()) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second->fd, nullptr);
    services_.erase(found);
  }
  if (!is_this_thread()) callback_ended_.wait(lock, [&] { return running_ != number; });
}

/// False if there is no such service.
bool Monitor::run_service(std::uint64_t number, std::uint32_t events) {
  std::shared_ptr<Service> service;  // keeps it alive if its own callback ends the service
  {
    const std::lock_guard lock(services_mutex_);
    const auto found = services_.find(number);
    if (found == services_.end()) return false;
    service = found->second;
    running_ = number;
  }
  service->on_event(events);
  const std::lock_guard lock(services_mutex_);
  running_ = 0;
  callback_ended_.notify_all();
  return true;
}

void Monitor::main(std::promise<void> mutex_held) {
  pthread_mutex_lock(&heartbeat_.alive);
  thread_id_ = std::this_thread::get_id();
  mutex_held.set_value();
  Deadline next_beat = Clock::now() + kHeartbeatPeriod;
  while (!stopping_.load(std::memory_order_acquire)) {  // pairs with the release in stop()
    const bool exited = handle_events(poll_timeout(next_beat));
    if (!exited && Clock::now() < next_beat) continue;
    next_beat = Clock::now() + kHeartbeatPeriod;
    heartbeat_.beats.fetch_add(1, std::memory_order_relaxed);  // read by LocalProcess::beats()
    drop_unused();
    on_tick_();
  }
  pthread_mutex_unlock(&heartbeat_.alive);
}

/// True if a watched process has exited.
bool Monitor::handle_events(int timeout_ms) {
  epoll_event events[16];
  const int count = ::epoll_wait(epoll_.get(), events, 16, timeout_ms);
  bool exited = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t number = events[i].data.u64;
    if (number == kWakeUp || run_service(number, events[i].events)) continue;
    mark_exited(number);
    exited = true;
  }
  return exited;
}

void Monitor::mark_exited(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (const auto found = watched_.find(number); found != watched_.end())
    if (const auto process = found->second.process.lock()) process->mark_reaped();
  end_watch(number);
}

void Monitor::stop() noexcept {
  if (!thread_.joinable()) return;
  heartbeat_.departed.store(1, std::memory_order_release);  // pairs with has_departed()
  stopping_.store(true, std::memory_order_release);         // pairs with the acquire in main()
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  thread_.join();
}

/// The child has no monitor thread and must not keep the descriptors open.
void Monitor::close_in_child() noexcept {
  for (auto& [number, watched] : watched_) watched.pidfd.reset();
  epoll_.reset();
  wake_.reset();
}

}  // namespace tccl
