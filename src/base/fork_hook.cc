#include "base/fork_hook.h"

#include <pthread.h>

#include <mutex>
#include <set>

namespace tccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<ForkHook*> hooks;
};

/// Process-wide, because pthread_atfork handlers take no user data. Never destroyed.
Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

/// Written in a forked child, which has one thread then.
std::uint32_t forks = 0;

}  // namespace

std::uint32_t fork_count() noexcept { return forks; }

struct ForkHandlers {
  static void before() {
    registry().mutex.lock();
    for (ForkHook* hook : registry().hooks) hook->guard_.lock();
  }
  static void unlock() {
    for (ForkHook* hook : registry().hooks) hook->guard_.unlock();
    registry().mutex.unlock();
  }
  static void in_child() {
    ++forks;
    for (ForkHook* hook : registry().hooks) hook->in_child_();
    unlock();
  }
};

ForkHook::ForkHook(std::mutex& guard, std::function<void()> in_child)
    : guard_(guard), in_child_(std::move(in_child)) {
  static const int installed =
      pthread_atfork(ForkHandlers::before, ForkHandlers::unlock, ForkHandlers::in_child);
  static_cast<void>(installed);
  const std::lock_guard lock(registry().mutex);
  registry().hooks.insert(this);
}

ForkHook::~ForkHook() {
  const std::lock_guard lock(registry().mutex);
  registry().hooks.erase(this);
}

}  // namespace tccl
