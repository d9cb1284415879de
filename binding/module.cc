// The extension module torch_ccl._C: what Python sees of the backend.
#include <pybind11/chrono.h>
#include <sys/syscall.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <limits>
#include <mutex>

#include "errors.h"
#include "process_group.h"
#include "store.h"
#include "tccl/tccl.h"

namespace py = pybind11;

namespace torch_ccl {
namespace {

using Options = ProcessGroupCCL::Options;
using std::chrono::milliseconds;

// Lets Ctrl-C end a wait. Python handles signals on its main thread only, so no other thread, least
// of all one of the library's own, needs to touch the interpreter.
void poll_interrupt() {
  if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// The process's context: made at the first use, closed by close_context(), which Python calls while
// it is still whole. Never destroyed: a static destructor would run after threads and tensors are
// gone.
struct Holder {
  std::mutex mutex;
  std::shared_ptr<tccl::Context> context;
  pid_t owner = 0;
};
Holder& holder() {
  static auto* const it = new Holder;
  return *it;
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

void close_context() {
  std::shared_ptr<tccl::Context> context;
  {
    const std::lock_guard lock(holder().mutex);
    context = std::move(holder().context);
  }
  if (context) context->close();
}

// torch passes the timeout as float seconds; a very long one must not overflow.
milliseconds to_milliseconds(std::chrono::duration<float> timeout) {
  constexpr double kLongest = std::numeric_limits<int32_t>::max() * 1000.0;  // 68 years
  return milliseconds(static_cast<int64_t>(std::min(timeout.count() * 1000.0, kLongest)));
}

c10::intrusive_ptr<Options> options_for(const c10d::DistributedBackendOptions& group,
                                        const c10::intrusive_ptr<Options>& given) {
  auto options = given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>();
  options->timeout = to_milliseconds(group.timeout);
  options->group_name = group.group_id;
  options->global_ranks_in_group.assign(group.global_ranks_in_group.begin(),
                                        group.global_ranks_in_group.end());
  return options;
}

c10::intrusive_ptr<ProcessGroupCCL> create(const c10d::DistributedBackendOptions& group,
                                           const c10::intrusive_ptr<Options>& given) {
  auto options = options_for(group, given);
  // torch lists the ranks of every group but the one of all ranks, which it numbers instead of
  // naming.
  const bool world = group.global_ranks_in_group.empty();
  C10dStore store(group.store, poll_interrupt);
  try {
    auto communicator = tccl::Communicator::create(
        context(), store, group.group_rank, group.group_size,
        {.name = world ? "world" : group.group_id, .timeout = options->timeout});
    return c10::make_intrusive<ProcessGroupCCL>(std::move(communicator), std::move(options));
  } catch (const tccl::Error& error) {
    throw_as_torch(error);
  }
}

}  // namespace
}  // namespace torch_ccl

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using torch_ccl::Options;
  using torch_ccl::ProcessGroupCCL;
  using Group = py::class_<ProcessGroupCCL, c10d::Backend, c10::intrusive_ptr<ProcessGroupCCL>>;
  py::module_::import("torch._C._distributed_c10d");  // the base classes

  Group group(module, "ProcessGroupCCL", "The backend \"ccl\" of torch.distributed.");
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(group, "Options")
      .def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout);
  group.def_property_readonly("options", &ProcessGroupCCL::getBackendOptions);

  module.def("create", &torch_ccl::create, py::arg("group"), py::arg("options").none(true),
             py::call_guard<py::gil_scoped_release>(),
             "Makes the backend of one group; torch.distributed calls it.");
  module.def("_close", &torch_ccl::close_context, py::call_guard<py::gil_scoped_release>(),
             "Says goodbye to all peers; called at exit.");
}
