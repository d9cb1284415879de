#include "fast_calls.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <typeinfo>
#include <utility>
#include <vector>

#include "dtypes.h"
#include "process_group.h"

namespace py = pybind11;

// Of its own, because all files of the binding are compiled as one and `send` is a short name.
namespace torch_ccl::fast {
namespace {

/// A longer functional collective stays asynchronous: its result may be needed later, and what torch
/// adds to the call is small beside it.
constexpr std::size_t kMaxFunctionalBytes = std::size_t{256} << 10;

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

// ---- arguments

bool is_absent(PyObject* value) { return value == nullptr || value == Py_None; }
bool is_false_or_absent(PyObject* value) { return value == nullptr || value == Py_False; }

std::optional<int> plain_int(PyObject* value) {
  if (value == nullptr || !PyLong_CheckExact(value)) return std::nullopt;
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(value, &overflow);
  if (overflow != 0 || number < 0 || number > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(number);
}

/// The names of a function's parameters, interned as the names of keyword arguments are.
template <std::size_t N>
class Parameters {
 public:
  using Values = std::array<PyObject*, N>;  // borrowed; null if not given

  template <class... Names>
  explicit Parameters(Names... names) : names_{interned(names)...} {}

  /// Nothing if the call has other arguments.
  std::optional<Values> bind(PyObject* const* arguments, Py_ssize_t count,
                             PyObject* keywords) const {
    const auto positional = static_cast<std::size_t>(count);
    if (positional > N) return std::nullopt;
    Values values{};
    std::copy_n(arguments, positional, values.begin());
    const Py_ssize_t keyword_count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < keyword_count; ++i) {
      const auto* found = std::ranges::find(names_, PyTuple_GET_ITEM(keywords, i));
      if (found == names_.end()) return std::nullopt;
      PyObject*& value = values[static_cast<std::size_t>(found - names_.begin())];
      if (value) return std::nullopt;
      value = arguments[count + i];
    }
    return values;
  }

 private:
  std::array<PyObject*, N> names_;
};

// ---- the plain case

/// Whether this thread runs torch's operators directly: no dispatch mode (fake tensors, tracing,
/// functionalization), no functorch transform, no torch function mode, no profiler or other observer,
/// and no collective that becomes the input of a graph.
bool is_plain_thread() {
  const c10::DispatchKeySet included = c10::impl::tls_local_dispatch_key_set().included_;
  return (included - c10::default_included_set).empty() &&
         !at::impl::torch_function_mode_enabled() && !at::hasCallbacks() &&
         !c10d::allow_inflight_collective_as_graph_input();
}

constexpr c10::DispatchKeySet kAutogradKeys{c10::DispatchKey::ADInplaceOrView,
                                            c10::DispatchKey::AutogradCPU};

c10::DispatchKeySet plain_keys() {
  static const c10::DispatchKeySet keys =
      at::empty({0}, at::TensorOptions(at::kCPU)).key_set() | kAutogradKeys;
  return keys;
}

bool is_in_storage(const at::Tensor& tensor) {
  const auto elements = static_cast<std::size_t>(tensor.storage_offset() + tensor.numel());
  return elements * tensor.itemsize() <= tensor.storage().nbytes();
}

/// The tensor, if it is torch.Tensor or Parameter itself, dense, on the CPU, without a gradient to
/// compute, not empty and not complex; otherwise null. Its dispatch keys show the rest: no fake or
/// functional tensor, no lazy conjugate or negation. (Inference tensors have no autograd keys.)
const at::Tensor* plain_strided_tensor(PyObject* object) {
  if (object == nullptr || !THPVariable_CheckExact(object)) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if ((tensor.key_set() | kAutogradKeys) != plain_keys()) return nullptr;
  if (tensor.numel() == 0 || tensor.is_complex() || !dtype_of(tensor.scalar_type())) return nullptr;
  if (tensor.requires_grad() && at::GradMode::is_enabled()) return nullptr;
  return &tensor;
}

/// The same if its memory holds its elements in order.
const at::Tensor* plain_tensor(PyObject* object) {
  const at::Tensor* tensor = plain_strided_tensor(object);
  return tensor && tensor->is_contiguous() && is_in_storage(*tensor) ? tensor : nullptr;
}

std::optional<tccl::Reduction> supported(tccl::ReduceOp op, const at::Tensor& tensor) {
  if (!tccl::supports(tccl_dtype(tensor), op)) return std::nullopt;
  return tccl::Reduction{op};
}

/// One of the constants of dist.ReduceOp; a PREMUL_SUM is an object of another type.
std::optional<tccl::Reduction> plain_reduction(PyObject* op, const at::Tensor& tensor) {
  if (op == nullptr) return supported(tccl::ReduceOp::sum, tensor);
  for (const auto& [constant, known] : TorchObjects::get().reductions)
    if (constant == op) return supported(known, tensor);
  return std::nullopt;
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

/// A group whose backend for the CPU is ours, and not wrapped as at TORCH_DISTRIBUTED_DEBUG=DETAIL.
/// Converts to false if the group is another one, or while a coalescing manager is open.
class PlainGroup {
 public:
  PlainGroup() = default;

  /// `group` is an argument: a group, or none for the default group.
  explicit PlainGroup(PyObject* group) {
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

  explicit PlainGroup(const std::string& name) {
    if (world_without_coalescing()) set_backend(*c10d::resolve_process_group(name));
  }

  explicit operator bool() const noexcept { return backend_ != nullptr; }
  [[nodiscard]] int size() const { return keepalive_->getSize(); }
  [[nodiscard]] int rank() const { return keepalive_->getRank(); }
  /// Whether the group was created for one device.
  [[nodiscard]] bool is_bound() const { return is_bound_; }

  /// The rank in the group, given by one of these arguments; nothing if that is not plain.
  [[nodiscard]] std::optional<int> rank_of(PyObject* global_rank, PyObject* group_rank) const {
    std::optional<int> rank;
    if (is_absent(global_rank)) {
      rank = plain_int(group_rank);
    } else if (is_absent(group_rank)) {
      rank = is_default_ ? plain_int(global_rank) : looked_up(global_rank);
    }
    return rank && *rank < size() ? rank : std::nullopt;
  }
  [[nodiscard]] bool is_default() const noexcept { return is_default_; }

  /// Whether it ran.
  [[nodiscard]] bool try_run(const tccl::Operation& operation) const {
    const py::gil_scoped_release without_gil;
    return backend_->try_run_plain(operation);
  }
  [[nodiscard]] bool try_run_message(const tccl::Operation& operation,
                                     const at::Tensor& tensor) const {
    const py::gil_scoped_release without_gil;
    return backend_->try_run_plain_message(operation, tensor);
  }

 private:
  void set_backend(c10d::ProcessGroup& group) {
    if (may_have_collective_hooks(group)) return;
    keepalive_ = group.getBackend(c10::DeviceType::CPU);
    is_bound_ = group.getBoundDeviceId().has_value();
    const c10d::Backend& backend = *keepalive_;
    if (typeid(backend) == typeid(ProcessGroupCCL))
      backend_ = static_cast<ProcessGroupCCL*>(keepalive_.get());
  }

  [[nodiscard]] std::optional<int> looked_up(PyObject* global_rank) const {
    static PyObject* const ranks_name = interned("_pg_group_ranks");
    PyObject* const groups = c10d_variable(ranks_name);
    PyObject* const ranks = groups ? item(groups, object_.ptr()) : nullptr;
    return ranks ? plain_int(item(ranks, global_rank)) : std::nullopt;
  }

  py::object object_;
  bool is_default_ = false;
  bool is_bound_ = false;
  c10::intrusive_ptr<c10d::Backend> keepalive_;  // another thread may destroy the group meanwhile
  ProcessGroupCCL* backend_ = nullptr;
};

const char* bytes_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  return std::less<>()(bytes_of(a), bytes_of(b) + b.nbytes()) &&
         std::less<>()(bytes_of(b), bytes_of(a) + a.nbytes());
}

// ---- operations. Each is what the backend's method makes of the same arguments.

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

/// An alltoallv of equal blocks, as always: other ranks may pass splits.
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

// ---- the functions of torch.distributed

PyObject* none() { return py::none().release().ptr(); }

/// Calls `attempt` if the thread is plain, and torch's function if that returns null or the thread is
/// not plain.
template <class Attempt>
PyObject* run_or_call(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
                      PyObject* keywords, const Attempt& attempt) noexcept {
  try {
    if (is_plain_thread())
      if (PyObject* const result = attempt()) return result;
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
  return PyObject_Vectorcall(original, arguments, static_cast<std::size_t>(count), keywords);
}

PyObject* all_reduce(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
                     PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<4> parameters("tensor", "op", "group", "async_op");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [input, op, group_argument, async_op] = *values;
    const at::Tensor* tensor = plain_tensor(input);
    if (!tensor || !is_false_or_absent(async_op)) return nullptr;
    const auto reduction = plain_reduction(op, *tensor);
    const PlainGroup group(group_argument);
    if (!reduction || !group) return nullptr;
    void* const data = tensor->mutable_data_ptr();
    const bool ran = group.try_run(
        tccl::allreduce(data, data, count_of(*tensor), tccl_dtype(*tensor), *reduction));
    return ran ? none() : nullptr;
  });
}

PyObject* broadcast(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
                    PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<5> parameters("tensor", "src", "group", "async_op", "group_src");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [input, src, group_argument, async_op, group_src] = *values;
    const at::Tensor* tensor = plain_tensor(input);
    if (!tensor || !is_false_or_absent(async_op)) return nullptr;
    const PlainGroup group(group_argument);
    if (!group) return nullptr;
    const auto root = group.rank_of(src, group_src);
    if (!root) return nullptr;
    void* const data = *root == group.rank() ? const_cast<void*>(tensor->const_data_ptr())
                                             : tensor->mutable_data_ptr();
    const bool ran =
        group.try_run(tccl::broadcast(data, count_of(*tensor), tccl_dtype(*tensor), *root));
    return ran ? none() : nullptr;
  });
}

PyObject* all_gather_single(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
                            PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<4> parameters("output_tensor", "input_tensor", "group", "async_op");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [output_argument, input_argument, group_argument, async_op] = *values;
    const at::Tensor* output = plain_tensor(output_argument);
    const at::Tensor* input = plain_tensor(input_argument);
    if (!output || !input || !is_false_or_absent(async_op)) return nullptr;
    const PlainGroup group(group_argument);
    if (!group) return nullptr;
    const auto operation = allgather_of(group, *output, *input);
    return operation && group.try_run(*operation) ? none() : nullptr;
  });
}

PyObject* reduce_scatter_single(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
                                PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<5> parameters("output", "input", "op", "group", "async_op");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [output_argument, input_argument, op, group_argument, async_op] = *values;
    const at::Tensor* output = plain_tensor(output_argument);
    const at::Tensor* input = plain_tensor(input_argument);
    if (!output || !input || !is_false_or_absent(async_op)) return nullptr;
    const PlainGroup group(group_argument);
    if (!group) return nullptr;
    const auto operation = reduce_scatter_of(group, *output, *input, plain_reduction(op, *input));
    return operation && group.try_run(*operation) ? none() : nullptr;
  });
}

PyObject* all_to_all_single(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
                            PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<6> parameters("output", "input", "output_split_sizes",
                                          "input_split_sizes", "group", "async_op");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [output_argument, input_argument, output_splits, input_splits, group_argument,
                async_op] = *values;
    const at::Tensor* output = plain_tensor(output_argument);
    const at::Tensor* input = plain_tensor(input_argument);
    if (!output || !input || !is_absent(output_splits) || !is_absent(input_splits) ||
        !is_false_or_absent(async_op))
      return nullptr;
    const PlainGroup group(group_argument);
    return group && try_run_alltoall(group, *output, *input) ? none() : nullptr;
  });
}

// torch runs the barrier on the accelerator, if there is one.
PyObject* barrier(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
                  PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<4> parameters("group", "async_op", "device_ids", "timeout");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [group_argument, async_op, device_ids, timeout] = *values;
    if (!is_false_or_absent(async_op) || !is_absent(device_ids) || !is_absent(timeout) ||
        at::accelerator::getAccelerator(/*checked=*/false))
      return nullptr;
    const PlainGroup group(group_argument);
    if (!group || group.is_bound()) return nullptr;
    return group.try_run(tccl::barrier()) ? none() : nullptr;
  });
}

PyObject* send(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
               PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<5> parameters("tensor", "dst", "group", "tag", "group_dst");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [input, dst, group_argument, tag_argument, group_dst] = *values;
    const at::Tensor* tensor = plain_tensor(input);
    const auto tag = tag_argument ? plain_int(tag_argument) : 0;
    if (!tensor || !tag) return nullptr;
    const PlainGroup group(group_argument);
    if (!group) return nullptr;
    const auto peer = group.rank_of(dst, group_dst);
    if (!peer || *peer == group.rank()) return nullptr;
    const auto operation = tccl::send(tensor->const_data_ptr(), tensor->nbytes(), *peer,
                                      static_cast<std::uint64_t>(*tag));
    return group.try_run_message(operation, *tensor) ? none() : nullptr;
  });
}

// Returns the global rank of the source. From any source, and by `group_src` in a group whose ranks
// have other global ranks, torch's function finds it.
PyObject* recv(PyObject* original, PyObject* const* arguments, Py_ssize_t count,
               PyObject* keywords) {
  return run_or_call(original, arguments, count, keywords, [&]() -> PyObject* {
    static const Parameters<5> parameters("tensor", "src", "group", "tag", "group_src");
    const auto values = parameters.bind(arguments, count, keywords);
    if (!values) return nullptr;
    const auto [output, src, group_argument, tag_argument, group_src] = *values;
    const at::Tensor* tensor = plain_tensor(output);
    const auto tag = tag_argument ? plain_int(tag_argument) : 0;
    if (!tensor || !tag) return nullptr;
    const PlainGroup group(group_argument);
    if (!group || (is_absent(src) && !group.is_default())) return nullptr;
    const auto peer = group.rank_of(src, group_src);
    if (!peer || *peer == group.rank()) return nullptr;
    const auto operation = tccl::recv(tensor->mutable_data_ptr(), tensor->nbytes(), *peer,
                                      static_cast<std::uint64_t>(*tag));
    if (!group.try_run_message(operation, *tensor)) return nullptr;
    return py::reinterpret_borrow<py::object>(is_absent(src) ? group_src : src).release().ptr();
  });
}

using Function = PyObject*(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

PyMethodDef method(const char* name, Function* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, nullptr};
}

/// Never freed: the functions refer to their rows.
std::array<PyMethodDef, 10>& fast_functions() {
  static auto* const table = new std::array<PyMethodDef, 10>{
      method("all_gather_into_tensor", all_gather_single),
      method("all_gather_single", all_gather_single),
      method("all_reduce", all_reduce),
      method("all_to_all_single", all_to_all_single),
      method("barrier", barrier),
      method("broadcast", broadcast),
      method("recv", recv),
      method("reduce_scatter_single", reduce_scatter_single),
      method("reduce_scatter_tensor", reduce_scatter_single),
      method("send", send),
  };
  return *table;
}

py::object fast_call(const std::string& name, const py::object& original) {
  static_cast<void>(TorchObjects::get());  // not in a call: importing may release the GIL
  auto& table = fast_functions();
  auto* const row = std::ranges::find(table, name, &PyMethodDef::ml_name);
  if (row == table.end()) throw py::key_error(name);
  return py::reinterpret_steal<py::object>(PyCFunction_New(row, original.ptr()));
}

// ---- functional collectives: a new tensor, complete when they return

/// The group by its name or itself.
PlainGroup functional_group(const py::object& group) {
  if (!PyUnicode_CheckExact(group.ptr())) return PlainGroup(group.ptr());
  try {
    return PlainGroup(group.cast<std::string>());
  } catch (const c10::Error&) {  // an unknown name: torch's function raises
    return {};
  }
}

/// Calls `attempt` with the contiguous input and the group if the call is plain.
template <class Attempt>
py::object run_functional(const py::object& input, const py::object& group_argument,
                          const Attempt& attempt) {
  if (!is_plain_thread()) return py::none();
  const at::Tensor* tensor = plain_strided_tensor(input.ptr());
  if (!tensor || !is_in_storage(*tensor)) return py::none();
  const PlainGroup group = functional_group(group_argument);
  if (!group) return py::none();
  const at::Tensor result = attempt(tensor->contiguous(), group);
  if (!result.defined()) return py::none();
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(result));
}

/// By the names of torch's functional collectives, which are ours, in any case.
std::optional<tccl::Reduction> functional_reduction(const py::object& op,
                                                    const at::Tensor& tensor) {
  if (!PyUnicode_CheckExact(op.ptr())) return std::nullopt;
  auto name = op.cast<std::string>();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const ReduceOpRow& row : kReduceOps)
    if (row.tccl != tccl::ReduceOp::premul_sum && tccl::name_of(row.tccl) == name)
      return supported(row.tccl, tensor);
  return std::nullopt;
}

/// A dimension of the tensor, which each rank's part is a block of.
std::optional<int> divided_dimension(const py::object& dimension, const at::Tensor& tensor) {
  const auto known = plain_int(dimension.ptr());
  return known && *known < tensor.dim() ? known : std::nullopt;
}

bool is_short(std::size_t bytes) { return bytes <= kMaxFunctionalBytes; }

/// A new tensor with another first dimension.
at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes.front() = rows;
  return at::empty(sizes, like.options());
}

py::object functional_all_reduce(const py::object& input, const py::object& op,
                                 const py::object& group_argument) {
  return run_functional(
      input, group_argument, [&](const at::Tensor& tensor, const PlainGroup& group) -> at::Tensor {
        const auto reduction = functional_reduction(op, tensor);
        if (!reduction || !is_short(tensor.nbytes())) return {};
        at::Tensor result = at::empty(tensor.sizes(), tensor.options());
        const auto operation = tccl::allreduce(tensor.const_data_ptr(), result.mutable_data_ptr(),
                                               count_of(tensor), tccl_dtype(tensor), *reduction);
        return group.try_run(operation) ? result : at::Tensor();
      });
}

py::object functional_broadcast(const py::object& input, const py::object& source,
                                const py::object& group_argument) {
  return run_functional(
      input, group_argument, [&](const at::Tensor& tensor, const PlainGroup& group) -> at::Tensor {
        const auto root = plain_int(source.ptr());
        if (!root || *root >= group.size() || !is_short(tensor.nbytes())) return {};
        at::Tensor result = tensor.clone();
        const auto operation =
            tccl::broadcast(result.mutable_data_ptr(), count_of(tensor), tccl_dtype(tensor), *root);
        return group.try_run(operation) ? result : at::Tensor();
      });
}

// The blocks of the ranks are in the order of the first dimension, so for another one they are
// rearranged, as torch does.
py::object functional_all_gather(const py::object& input, const py::object& dimension,
                                 const py::object& group_argument) {
  return run_functional(
      input, group_argument, [&](const at::Tensor& tensor, const PlainGroup& group) -> at::Tensor {
        const auto dim = divided_dimension(dimension, tensor);
        if (!dim || !is_short(tensor.nbytes() * static_cast<std::size_t>(group.size()))) return {};
        at::Tensor result = empty_rows(tensor, tensor.size(0) * group.size());
        const auto operation = allgather_of(group, result, tensor);
        if (!operation || !group.try_run(*operation)) return {};
        return *dim == 0 ? result : at::cat(result.chunk(group.size()), *dim);
      });
}

py::object functional_reduce_scatter(const py::object& input, const py::object& op,
                                     const py::object& dimension,
                                     const py::object& group_argument) {
  return run_functional(
      input, group_argument, [&](const at::Tensor& given, const PlainGroup& group) -> at::Tensor {
        const auto dim = divided_dimension(dimension, given);
        const auto reduction = functional_reduction(op, given);
        if (!dim || given.size(*dim) % group.size() != 0 || !is_short(given.nbytes())) return {};
        const at::Tensor tensor = *dim == 0 ? given : at::cat(given.chunk(group.size(), *dim));
        at::Tensor result = empty_rows(tensor, tensor.size(0) / group.size());
        const auto operation = reduce_scatter_of(group, result, tensor, reduction);
        return operation && group.try_run(*operation) ? result : at::Tensor();
      });
}

py::object functional_all_to_all(const py::object& input, const py::object& group_argument) {
  return run_functional(
      input, group_argument, [&](const at::Tensor& tensor, const PlainGroup& group) -> at::Tensor {
        if (tensor.dim() == 0 || tensor.size(0) % group.size() != 0 || !is_short(tensor.nbytes()))
          return {};
        at::Tensor result = at::empty(tensor.sizes(), tensor.options());
        return try_run_alltoall(group, result, tensor) ? result : at::Tensor();
      });
}

}  // namespace
}  // namespace torch_ccl::fast

void torch_ccl::add_fast_calls(py::module_& module) {
  using namespace fast;
  module.def("_fast_call", &fast_call, py::arg("name"), py::arg("original"));
  module.def("_fast_functional_all_reduce", &functional_all_reduce);
  module.def("_fast_functional_broadcast", &functional_broadcast);
  module.def("_fast_functional_all_gather", &functional_all_gather);
  module.def("_fast_functional_reduce_scatter", &functional_reduce_scatter);
  module.def("_fast_functional_all_to_all", &functional_all_to_all);
}
