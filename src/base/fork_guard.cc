#include "base/fork_guard.h"

#include <pthread.h>

#include <mutex>
#include <set>

namespace tccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<ForkAware*> objects;
};

/// pthread_atfork knows no user data, so this list belongs to the process. Never destroyed.
Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

}  // namespace

struct ForkHandlers {
  static void before() {
    registry().mutex.lock();
    for (ForkAware* object : registry().objects) object->guard_.lock();
  }
  static void unlock() {
    for (ForkAware* object : registry().objects) object->guard_.unlock();
    registry().mutex.unlock();
  }
  static void in_child() {
    for (ForkAware* object : registry().objects) object->after_fork_in_child();
    unlock();
  }
};

ForkAware::ForkAware(std::mutex& guard) : guard_(guard) {
  static const int installed =
      pthread_atfork(ForkHandlers::before, ForkHandlers::unlock, ForkHandlers::in_child);
  static_cast<void>(installed);
  const std::lock_guard lock(registry().mutex);
  registry().objects.insert(this);
}

ForkAware::~ForkAware() {
  const std::lock_guard lock(registry().mutex);
  registry().objects.erase(this);
}

}  // namespace tccl
