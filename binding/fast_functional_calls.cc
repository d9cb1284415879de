// The functional collectives: a new tensor, complete when they return.
#include "fast_calls.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

#include "dtypes.h"
#include "plain_case.h"

namespace py = pybind11;

namespace torch_ccl::fast {
namespace {

/// A longer functional collective stays asynchronous: its result may be needed later, and what torch
/// adds to the call is small beside it.
constexpr std::size_t kMaxFunctionalBytes = std::size_t{256} << 10;

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

/// The names are those of tccl::ReduceOp, in upper or lower case.
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

void torch_ccl::add_fast_functional_calls(py::module_& module) {
  using namespace fast;
  module.def("_fast_functional_all_reduce", &functional_all_reduce);
  module.def("_fast_functional_broadcast", &functional_broadcast);
  module.def("_fast_functional_all_gather", &functional_all_gather);
  module.def("_fast_functional_reduce_scatter", &functional_reduce_scatter);
  module.def("_fast_functional_all_to_all", &functional_all_to_all);
}
