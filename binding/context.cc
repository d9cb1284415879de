#include "context.h"

#include <unistd.h>

#include <mutex>

#include "c10d_store.h"
#include "deferred_receives.h"
#include "errors.h"
#include "interrupt.h"

namespace torch_ccl {
namespace {

struct ContextHolder {
  std::mutex mutex;  // guards what follows
  std::shared_ptr<tccl::Context> context;
  pid_t owner = 0;
  std::weak_ptr<tccl::Communicator> world;  // the group of all ranks
};
// Never destroyed: a static destructor would run after threads and tensors are destroyed.
ContextHolder& holder() {
  static auto* const instance = new ContextHolder;
  return *instance;
}

std::shared_ptr<tccl::Communicator> world() {
  const std::lock_guard lock(holder().mutex);
  return holder().world.lock();
}

void set_world(const std::shared_ptr<tccl::Communicator>& communicator) {
  const std::lock_guard lock(holder().mutex);
  holder().world = communicator;
}

// If this process has no memory or descriptors left, for example, the other ranks fail with that
// reason instead of waiting for it.
std::shared_ptr<tccl::Context> context_or_report(tccl::Store& store, int rank, int size,
                                                 const tccl::Communicator::Options& options) {
  try {
    return context();
  } catch (const std::exception& error) {
    tccl::Communicator::report_failed_start(store, rank, size, options, error.what());
    throw;
  }
}

}  // namespace

std::shared_ptr<tccl::Context> context() {
  ContextHolder& held = holder();
  const std::lock_guard lock(held.mutex);
  if (!held.context || held.owner != getpid()) {  // a forked child needs a context of its own
    held.context = tccl::Context::create({.check_interrupt = check_interrupt});
    held.owner = getpid();
  }
  return held.context;
}

std::shared_ptr<tccl::Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      tccl::Communicator::Options options,
                                                      bool is_world) {
  C10dStore adapter(store, check_interrupt);
  try {
    const auto own_context = context_or_report(adapter, rank, size, options);
    if (!is_world) options.parent = world();
    auto made = tccl::Communicator::create(own_context, adapter, rank, size, std::move(options));
    if (is_world) set_world(made);
    return made;
  } catch (const tccl::Error& error) {
    throw_torch_error(error);
  }
}

std::shared_ptr<tccl::Communicator> shrink_communicator(tccl::Communicator& parent,
                                                        std::vector<int> excluded,
                                                        tccl::Communicator::Options options,
                                                        bool is_world) {
  try {
    auto made = parent.shrink(std::move(excluded), std::move(options));
    if (is_world) set_world(made);
    return made;
  } catch (const tccl::Error& error) {
    throw_torch_error(error);
  }
}

void close_context(std::chrono::milliseconds wait_for_operations) {
  std::shared_ptr<tccl::Context> context;
  {
    const std::lock_guard lock(holder().mutex);
    context = std::move(holder().context);
  }
  if (context) context->close(wait_for_operations);
  DeferredReceives::instance().close();  // all groups are closed by now
}

}  // namespace torch_ccl
