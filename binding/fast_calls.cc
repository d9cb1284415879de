// The functions of torch.distributed.
#include "fast_calls.h"

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "plain_case.h"

namespace py = pybind11;

namespace torch_ccl::fast {
namespace {

// ---- arguments

/// The names of a function's parameters, interned as the names of keyword arguments are.
template <std::size_t N>
class Parameters {
 public:
  using Values = std::array<PyObject*, N>;  // borrowed; null if not given

  template <class... Names>
  explicit Parameters(Names... names) : names_{PyUnicode_InternFromString(names)...} {}

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
  load_torch_objects();  // not in a call: importing may release the GIL
  auto& table = fast_functions();
  auto* const row = std::ranges::find(table, name, &PyMethodDef::ml_name);
  if (row == table.end()) throw py::key_error(name);
  return py::reinterpret_steal<py::object>(PyCFunction_New(row, original.ptr()));
}

}  // namespace
}  // namespace torch_ccl::fast

void torch_ccl::add_fast_calls(py::module_& module) {
  module.def("_fast_call", &fast::fast_call, py::arg("name"), py::arg("original"));
}
