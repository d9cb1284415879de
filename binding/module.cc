// The extension module torch_ccl._C: the Python interface of the backend.
// Thread safety: that of the functions it calls; most release the GIL.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <limits>

#include "context.h"
#include "errors.h"
#include "fast_calls.h"
#include "memory.h"
#include "process_group.h"

namespace py = pybind11;

namespace torch_ccl {
namespace {

using Options = ProcessGroupCCL::Options;
using std::chrono::milliseconds;

// torch passes the timeout as seconds in a float; a very long one must not overflow.
milliseconds to_milliseconds(std::chrono::duration<float> timeout) {
  constexpr double kLongest = std::numeric_limits<int32_t>::max() * 1000.0;  // 68 years
  return milliseconds(static_cast<int64_t>(std::min(timeout.count() * 1000.0, kLongest)));
}

// torch.distributed calls it to create the backend of a group.
c10::intrusive_ptr<ProcessGroupCCL> create(const c10d::DistributedBackendOptions& group,
                                           const c10::intrusive_ptr<Options>& given,
                                           const std::string& name) {
  auto options = given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>();
  options->timeout = to_milliseconds(group.timeout);
  options->group_name = group.group_id;
  options->global_ranks_in_group.assign(group.global_ranks_in_group.begin(),
                                        group.global_ranks_in_group.end());
  options->is_world = group.global_ranks_in_group.empty();
  return c10::make_intrusive<ProcessGroupCCL>(group.store, group.group_rank, group.group_size,
                                              std::move(options), name);
}

// ProcessGroupCCL(store, rank, size, ...) in Python. Releases the GIL itself, because a call_guard
// would also cover pybind's registration of the new object, which needs the GIL.
c10::intrusive_ptr<ProcessGroupCCL> construct(const ProcessGroupCCL::StorePtr& store, int rank,
                                              int size, milliseconds timeout,
                                              const std::string& name, const std::string& backend) {
  const py::gil_scoped_release without_gil;
  return c10::make_intrusive<ProcessGroupCCL>(store, rank, size,
                                              c10::make_intrusive<Options>(timeout, backend), name);
}

// torch.distributed.shrink_group() calls it.
ProcessGroupCCL::BackendPtr shrink(const c10::intrusive_ptr<ProcessGroupCCL>& group,
                                   const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                                   const ProcessGroupCCL::OptionsPtr& options) {
  ProcessGroupCCL::BackendPtr shrunk;
  {
    const py::gil_scoped_release without_gil;
    shrunk = group->shrink(ranks_to_exclude, shrink_flags, options);
  }
  py::module_::import("torch_ccl.shrunk_store").attr("replace_lost_store")(group, shrunk);
  return shrunk;
}

tccl::WireFormat wire_format_named(const std::string& name) {
  if (const auto format = tccl::wire_format_named(name)) return *format;
  throw py::value_error("wire_dtype must be same, bf16 or int8, not " + name);
}

void register_invalid_argument(py::module_& module) {
  static PyObject* type = nullptr;
  type = PyErr_NewExceptionWithDoc(
      "torch_ccl.InvalidArgument", "A call was refused before anything was sent.",
      py::make_tuple(py::handle(PyExc_ValueError), py::handle(PyExc_RuntimeError)).ptr(), nullptr);
  module.attr("InvalidArgument") = py::handle(type);
  py::register_exception_translator([](std::exception_ptr exception) {
    try {
      std::rethrow_exception(std::move(exception));
    } catch (const InvalidArgument& error) {
      PyErr_SetString(type, error.what_without_backtrace());
    }
  });
}

}  // namespace
}  // namespace torch_ccl

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using torch_ccl::Options;
  using torch_ccl::ProcessGroupCCL;
  using Group = py::class_<ProcessGroupCCL, c10d::Backend, c10::intrusive_ptr<ProcessGroupCCL>>;
  using ReleaseGil = py::call_guard<py::gil_scoped_release>;
  py::module_::import("torch._C._distributed_c10d");  // the base classes

  torch_ccl::register_invalid_argument(module);
  Group group(module, "ProcessGroupCCL", "The backend \"ccl\" of torch.distributed.");
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(group, "Options")
      .def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout)
      // torch.distributed assigns these; torch 2.8 has them in the options of its own backends only.
      .def_readwrite("group_name", &Options::group_name)
      .def_readwrite("global_ranks_in_group", &Options::global_ranks_in_group);
  group
      .def(py::init(&torch_ccl::construct), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout") = kBackendDefaultTimeout, py::arg("name") = "world",
           py::arg("backend") = torch_ccl::kBackendName)
      .def("_set_default_timeout", &ProcessGroupCCL::setTimeout, py::arg("timeout"), ReleaseGil(),
           "Set the timeout of later calls; torch calls it on its own backends, too.")
      .def_property_readonly("options", &ProcessGroupCCL::getBackendOptions)
      .def(
          "allreduce_compressed",
          [](ProcessGroupCCL& group, std::vector<at::Tensor> tensors,
             const c10d::AllreduceOptions& options, const std::string& wire_dtype) {
            return group.allreduce_compressed(tensors, options,
                                              torch_ccl::wire_format_named(wire_dtype));
          },
          py::arg("tensors"), py::arg("options"), py::arg("wire_dtype"), ReleaseGil(),
          "As allreduce; float32 is sent between hosts as \"bf16\" or \"int8\".")
      .def(
          "_set_device_backend",
          [](ProcessGroupCCL& group, const std::string& device,
             const c10::intrusive_ptr<c10d::Backend>& backend) {
            group.set_device_backend(at::Device(device).type(), backend);
          },
          py::arg("device"), py::arg("backend"),
          "Route tensors of this device type to this backend.")
      .def(
          "perform_nocolor_split", [](ProcessGroupCCL&, const at::Device&) {}, py::arg("device"),
          "torch calls it on the ranks outside a new group; only members take part in ours.")
      .def("get_error", &ProcessGroupCCL::getError, ReleaseGil(),
           "The kind of error that failed the group, or SUCCESS.");

  if (torch_ccl::kHasShrinkGroup)
    group.def("shrink", &torch_ccl::shrink, py::arg("ranks_to_exclude"),
              py::arg("shrink_flags") = 0, py::arg("opts_override").none(true) = py::none(),
              "Form a new group of the ranks that are not excluded.");

  module.def("create", &torch_ccl::create, py::arg("group"), py::arg("options").none(true),
             py::arg("name"), ReleaseGil(),
             "Create the backend of one group; torch.distributed calls it.");
  module.def(
      "empty",
      [](const std::vector<int64_t>& size, at::ScalarType dtype) {
        return torch_ccl::empty_shared(size, at::TensorOptions().dtype(dtype));
      },
      py::arg("size"), py::arg("dtype"), ReleaseGil(),
      "An uninitialised tensor in memory that the ranks of this host share.");
  module.def("operation_count", &ProcessGroupCCL::operation_count,
             "The number of collectives and messages that this process has started over ccl.");
  torch_ccl::add_fast_calls(module);
  torch_ccl::add_fast_functional_calls(module);
  module.def("_close", &torch_ccl::close_context, py::arg("wait_for_operations"), ReleaseGil(),
             "Close the context and join its threads; called at exit.");
}
