#include "context.h"

#include <sys/syscall.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <mutex>

#include "errors.h"
#include "late_receives.h"
#include "store.h"

namespace torch_ccl {
namespace {

// Made at the first use. Never destroyed: a static destructor would run after threads and tensors
// are gone.
struct Holder {
  std::mutex mutex;
  std::shared_ptr<tccl::Context> context;
  pid_t owner = 0;
};
Holder& holder() {
  static auto* const it = new Holder;
  return *it;
}

}  // namespace

// Python handles signals on its main thread only, so no other thread, least of all one of the
// library's own, needs to touch the interpreter.
void poll_interrupt() {
  if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

std::shared_ptr<tccl::Context> context() {
  Holder& held = holder();
  const std::lock_guard lock(held.mutex);
  if (!held.context || held.owner != getpid()) {  // a forked child needs a context of its own
    held.context = tccl::Context::create({.poll_interrupt = poll_interrupt});
    held.owner = getpid();
  }
  return held.context;
}

std::shared_ptr<tccl::Communicator> make_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      tccl::Communicator::Options options) {
  C10dStore keys(store, poll_interrupt);
  try {
    return tccl::Communicator::create(context(), keys, rank, size, std::move(options));
  } catch (const tccl::Error& error) {
    throw_as_torch(error);
  }
}

void close_context() {
  std::shared_ptr<tccl::Context> context;
  {
    const std::lock_guard lock(holder().mutex);
    context = std::move(holder().context);
  }
  if (context) context->close();
  LateReceives::instance().close();  // their groups are closed now, so they end
}

}  // namespace torch_ccl
