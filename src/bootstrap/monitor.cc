#include "bootstrap/monitor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/format.h"
#include "base/system_error.h"

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

void add_to_epoll(const Fd& epoll, int fd, void* data) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = data}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_system_error("epoll_ctl");
}

}  // namespace

std::string Peer::where() const { return formatted("host {}, pid {}", host_, pid_); }

Monitor::Monitor(LifeSign& life, std::function<void()> on_tick)
    : life_(life),
      on_tick_(std::move(on_tick)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) throw_system_error("epoll_create1/eventfd");
  add_to_epoll(epoll_, wake_.get(), nullptr);
  init_robust_mutex(life_.alive);
  std::promise<void> holding;
  auto held = holding.get_future();
  thread_ =
      std::thread([this, promise = std::move(holding)]() mutable { main(std::move(promise)); });
  held.wait();  // nobody may see this process before it shows that it lives
}

void Monitor::watch(std::shared_ptr<Peer> peer) {
  if (peer->pidfd() < 0) return;  // without a pidfd the mutex word is the only witness
  add_to_epoll(epoll_, peer->pidfd(), peer.get());
  const std::lock_guard lock(mutex_);
  watched_.push_back(std::move(peer));
}

void Monitor::main(std::promise<void> holding) {
  pthread_mutex_lock(&life_.alive);
  holding.set_value();
  while (!stopping_.load(std::memory_order_acquire)) {  // pairs with stop()
    handle_events(static_cast<int>(kHeartbeatPeriod.count()));
    life_.heartbeat.fetch_add(1, std::memory_order_relaxed);
    on_tick_();
  }
  pthread_mutex_unlock(&life_.alive);
}

void Monitor::handle_events(int timeout_ms) {
  epoll_event events[16];
  const int count = ::epoll_wait(epoll_.get(), events, 16, timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto* peer = static_cast<Peer*>(events[i].data.ptr);
    if (peer == nullptr) continue;  // stop() woke us
    peer->mark_reaped();
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer->pidfd(), nullptr);
  }
}

void Monitor::stop() noexcept {
  if (!thread_.joinable()) return;
  life_.goodbye.store(1, std::memory_order_release);  // pairs with Peer::said_goodbye
  stopping_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  thread_.join();
}

void Monitor::drop_in_child() noexcept {
  if (thread_.joinable()) thread_.detach();  // no such thread here: only forget its handle
  epoll_.reset();
  wake_.reset();
}

}  // namespace tccl
