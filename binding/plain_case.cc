#include "plain_case.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <functional>
#include <limits>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <typeinfo>
#include <utility>
#include <vector>

#include "dtypes.h"

namespace py = pybind11;

namespace torch_ccl::fast {
namespace {

// ---- what Python's side of torch knows

/// Python objects that every call uses. Never freed.
struct TorchObjects {
  PyObject* c10d;  // the variables of torch.distributed.distributed_c10d
  PyTypeObject* process_group;
  std::vector<std::pair<PyObject*, tccl::ReduceOp>> reductions;

  static const TorchObjects& get() {
    static const auto* const instance = new TorchObjects;
    return *instance;
  }

 private:
  TorchObjects() {
    const py::module_ bindings = py::module_::import("torch._C._distributed_c10d");
    const py::module_ module = py::module_::import("torch.distributed.distributed_c10d");
    c10d = PyModule_GetDict(module.inc_ref().ptr());
    py::object group_type = bindings.attr("ProcessGroup");
    process_group = reinterpret_cast<PyTypeObject*>(group_type.release().ptr());
    const py::object reduce_op = bindings.attr("ReduceOp");
    for (const char* name : {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"}) {
      py::object op = reduce_op.attr(name);
      const auto known = reduce_op_of(op.cast<c10d::ReduceOp::RedOpType>());
      reductions.emplace_back(op.release().ptr(), *known);
    }
  }
};

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// Lookups; null if there is nothing.

PyObject* item(PyObject* dictionary, PyObject* key) {
  if (!PyDict_CheckExact(dictionary)) return nullptr;
  PyObject* const value = PyDict_GetItemWithError(dictionary, key);
  if (!value) PyErr_Clear();
  return value;
}

PyObject* c10d_variable(PyObject* name) { return item(TorchObjects::get().c10d, name); }

py::object attribute(PyObject* object, PyObject* name) {
  PyObject* const value = PyObject_GetAttr(object, name);
  if (!value) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

/// c10d's variable _world; null while a coalescing manager is open.
PyObject* world_without_coalescing() {
  static PyObject* const world_name = interned("_world");
  static PyObject* const coalescing_name = interned("_pg_coalesce_state");
  PyObject* const world = c10d_variable(world_name);
  if (!world) return nullptr;
  const py::object groups = attribute(world, coalescing_name);
  const bool is_known = groups && PyDict_CheckExact(groups.ptr());
  return is_known && PyDict_GET_SIZE(groups.ptr()) == 0 ? world : nullptr;
}

constexpr c10::DispatchKeySet kAutogradKeys{c10::DispatchKey::ADInplaceOrView,
                                            c10::DispatchKey::AutogradCPU};

c10::DispatchKeySet plain_keys() {
  static const c10::DispatchKeySet keys =
      at::empty({0}, at::TensorOptions(at::kCPU)).key_set() | kAutogradKeys;
  return keys;
}

const char* bytes_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  return std::less<>()(bytes_of(a), bytes_of(b) + b.nbytes()) &&
         std::less<>()(bytes_of(b), bytes_of(a) + a.nbytes());
}

}  // namespace

void load_torch_objects() { static_cast<void>(TorchObjects::get()); }

// ---- arguments

std::optional<int> plain_int(PyObject* value) {
  if (value == nullptr || !PyLong_CheckExact(value)) return std::nullopt;
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(value, &overflow);
  if (overflow != 0 || number < 0 || number > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(number);
}

// ---- thread, tensors, reductions

bool is_plain_thread() {
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return (included - c10::default_included_set).empty() &&
         !at::impl::torch_function_mode_enabled() && !at::hasCallbacks() &&
         !c10d::allow_inflight_collective_as_graph_input();
}

bool is_in_storage(const at::Tensor& tensor) {
  const auto elements = static_cast<std::size_t>(tensor.storage_offset() + tensor.numel());
  return elements * tensor.itemsize() <= tensor.storage().nbytes();
}

const at::Tensor* plain_strided_tensor(PyObject* object) {
  if (object == nullptr || !THPVariable_CheckExact(object)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if ((tensor.key_set() | kAutogradKeys) != plain_keys()) return nullptr;
  if (tensor.numel() == 0 || tensor.is_complex() || !dtype_of(tensor.scalar_type())) return nullptr;
  if (tensor.requires_grad() && at::GradMode::is_enabled()) return nullptr;
  return &tensor;
}

const at::Tensor* plain_tensor(PyObject* object) {
  const at::Tensor* tensor = plain_strided_tensor(object);
  return tensor && tensor->is_contiguous() && is_in_storage(*tensor) ? tensor : nullptr;
}

std::optional<tccl::Reduction> supported(tccl::ReduceOp op, const at::Tensor& tensor) {
  if (!tccl::supports(tccl_dtype(tensor), op)) return std::nullopt;
  return tccl::Reduction{op};
}

std::optional<tccl::Reduction> plain_reduction(PyObject* op, const at::Tensor& tensor) {
  if (op == nullptr) return supported(tccl::ReduceOp::sum, tensor);
  for (const auto& [constant, known] : TorchObjects::get().reductions)
    if (constant == op) return supported(known, tensor);
  return std::nullopt;
}

// ---- the group

PlainGroup::PlainGroup(PyObject* group) {
  static PyObject* const default_name = interned("_default_pg");
  PyObject* const world = world_without_coalescing();
  if (!world) return;
  const py::object default_group = attribute(world, default_name);
  if (!default_group) return;
  object_ = is_absent(group) ? default_group : py::reinterpret_borrow<py::object>(group);
  is_default_ = object_.is(default_group);
  if (Py_TYPE(object_.ptr()) == TorchObjects::get().process_group)
    set_backend(*object_.cast<c10d::ProcessGroup*>());
}

PlainGroup::PlainGroup(const std::string& name) {
  if (world_without_coalescing()) set_backend(*c10d::resolve_process_group(name));
}

std::optional<int> PlainGroup::rank_of(PyObject* global_rank, PyObject* group_rank) const {
  std::optional<int> rank;
  if (is_absent(global_rank)) {
    rank = plain_int(group_rank);
  } else if (is_absent(group_rank)) {
    rank = is_default_ ? plain_int(global_rank) : looked_up(global_rank);
  }
  return rank && *rank < size() ? rank : std::nullopt;
}

bool PlainGroup::try_run(const tccl::Operation& operation) const {
  const py::gil_scoped_release without_gil;
  return backend_->try_run_plain(operation);
}

bool PlainGroup::try_run_message(const tccl::Operation& operation, const at::Tensor& tensor) const {
  const py::gil_scoped_release without_gil;
  return backend_->try_run_plain_message(operation, tensor);
}

void PlainGroup::set_backend(c10d::ProcessGroup& group) {
  // A subclass, in Python for example, may have methods of its own.
  if (typeid(group) != typeid(c10d::ProcessGroup) || may_have_collective_hooks(group)) return;
  keepalive_ = group.getBackend(c10::DeviceType::CPU);
  is_bound_ = group.getBoundDeviceId().has_value();
  const c10d::Backend& backend = *keepalive_;
  if (typeid(backend) == typeid(ProcessGroupCCL))
    backend_ = static_cast<ProcessGroupCCL*>(keepalive_.get());
}

std::optional<int> PlainGroup::looked_up(PyObject* global_rank) const {
  static PyObject* const ranks_name = interned("_pg_group_ranks");
  PyObject* const groups = c10d_variable(ranks_name);
  PyObject* const ranks = groups ? item(groups, object_.ptr()) : nullptr;
  return ranks ? plain_int(item(ranks, global_rank)) : std::nullopt;
}

// ---- operations

std::optional<tccl::Operation> allgather_of(const PlainGroup& group, const at::Tensor& output,
                                            const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type() || output.numel() != input.numel() * group.size())
    return std::nullopt;
  const bool in_place = bytes_of(input) == bytes_of(output) + input.nbytes() * group.rank();
  if (!in_place && overlap(input, output)) return std::nullopt;
  return tccl::allgather(input.const_data_ptr(), output.mutable_data_ptr(), count_of(input),
                         tccl_dtype(input));
}

std::optional<tccl::Operation> reduce_scatter_of(const PlainGroup& group, const at::Tensor& output,
                                                 const at::Tensor& input,
                                                 std::optional<tccl::Reduction> reduction) {
  if (!reduction || output.scalar_type() != input.scalar_type() ||
      input.numel() != output.numel() * group.size() || overlap(input, output))
    return std::nullopt;
  return tccl::reduce_scatter(input.const_data_ptr(), output.mutable_data_ptr(), count_of(output),
                              tccl_dtype(output), *reduction);
}

bool try_run_alltoall(const PlainGroup& group, const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type() || output.numel() != input.numel() ||
      input.numel() % group.size() != 0 || overlap(input, output))
    return false;
  const std::size_t count = count_of(input) / static_cast<std::size_t>(group.size());
  const std::size_t bytes = count * input.itemsize();
  c10::SmallVector<tccl::ConstBlock, 16> inputs;
  c10::SmallVector<tccl::Block, 16> outputs;
  auto* const out = static_cast<char*>(output.mutable_data_ptr());
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(group.size()); ++rank) {
    inputs.push_back({bytes_of(input) + rank * bytes, count});
    outputs.push_back({out + rank * bytes, count});
  }
  return group.try_run(tccl::alltoallv({inputs.data(), inputs.size()},
                                       {outputs.data(), outputs.size()}, tccl_dtype(input)));
}

}  // namespace torch_ccl::fast
