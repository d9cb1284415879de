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
};
// Never destroyed: a static destructor would run after threads and tensors are destroyed.
ContextHolder& holder() {
  static auto* const instance = new ContextHolder;
  return *instance;
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
                                                      tccl::Communicator::Options options) {
  C10dStore adapter(store, check_interrupt);
  try {
    return tccl::Communicator::create(context(), adapter, rank, size, std::move(options));
  } catch (const tccl::Error& error) {
    throw_torch_error(error);
  }
}

void close_context() {
  std::shared_ptr<tccl::Context> context;
  {
    const std::lock_guard lock(holder().mutex);
    context = std::move(holder().context);
  }
  if (context) context->close();
  DeferredReceives::instance().close();  // all groups are closed by now
}

}  // namespace torch_ccl
