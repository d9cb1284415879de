// The plain case of fast calls: recognises a call for which nobody can notice that torch's function is
// left out, from its arguments as they come from Python, and runs it.
//
//   if (!is_plain_thread()) return nullptr;              // torch's function runs instead
//   const at::Tensor* tensor = plain_tensor(argument);   // null if it is not plain
//   const PlainGroup group(group_argument);              // false if it is not plain
//   if (!tensor || !group) return nullptr;
//   return group.try_run(tccl::broadcast(tensor->mutable_data_ptr(), count_of(*tensor), ...));
//
// docs/fast-calls.md lists the conditions. Tensors and objects of Python are borrowed for the call.
// Thread safety: every function needs the GIL; try_run...() release it while the operation runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "process_group.h"

// Of its own, because all files of the binding are compiled as one and `send` is a short name.
namespace torch_ccl::fast {

/// Imports what the functions below look at in torch. Otherwise the first use does, and importing may
/// release the GIL.
void load_torch_objects();

// ---- arguments; null if not given

inline bool is_absent(PyObject* value) { return value == nullptr || value == Py_None; }
inline bool is_false_or_absent(PyObject* value) { return value == nullptr || value == Py_False; }

/// Nothing if it is no int, or a negative one.
std::optional<int> plain_int(PyObject* value);

// ---- thread, tensors, reductions

/// Whether this thread runs torch's operators directly: no dispatch mode (fake tensors, tracing,
/// functionalization), no functorch transform, no torch function mode, no profiler or other observer,
/// and no collective that becomes the input of a graph.
bool is_plain_thread();

/// Whether the storage has room for as many elements from the tensor's offset on.
bool is_in_storage(const at::Tensor& tensor);

/// The tensor, if it is torch.Tensor or Parameter itself, dense, on the CPU, without a gradient to
/// compute, not empty and not complex; otherwise null. Its dispatch keys show the rest: no fake or
/// functional tensor, no lazy conjugate or negation. (Inference tensors have no autograd keys.)
const at::Tensor* plain_strided_tensor(PyObject* object);
/// The same if its memory holds its elements in order.
const at::Tensor* plain_tensor(PyObject* object);

/// Nothing if `op` is not defined for the tensor's dtype.
std::optional<tccl::Reduction> supported(tccl::ReduceOp op, const at::Tensor& tensor);
/// One of the constants of dist.ReduceOp; a PREMUL_SUM is an object of another type.
std::optional<tccl::Reduction> plain_reduction(PyObject* op, const at::Tensor& tensor);

// ---- the group

/// A group whose backend for the CPU is ours, and not wrapped as at TORCH_DISTRIBUTED_DEBUG=DETAIL.
/// Converts to false if the group is another one, or while a coalescing manager is open; then nothing
/// else may be called.
class PlainGroup {
 public:
  PlainGroup() = default;

  /// `group` is an argument: a group, or none for the default group.
  explicit PlainGroup(PyObject* group);
  /// Throws c10::Error if there is no group of this name.
  explicit PlainGroup(const std::string& name);

  explicit operator bool() const noexcept { return backend_ != nullptr; }
  [[nodiscard]] int size() const { return keepalive_->getSize(); }
  [[nodiscard]] int rank() const { return keepalive_->getRank(); }
  /// Whether the group was created for one device.
  [[nodiscard]] bool is_bound() const { return is_bound_; }

  /// The rank in the group, given by one of these arguments; nothing if that is not plain.
  [[nodiscard]] std::optional<int> rank_of(PyObject* global_rank, PyObject* group_rank) const;
  [[nodiscard]] bool is_default() const noexcept { return is_default_; }

  /// Whether it ran.
  [[nodiscard]] bool try_run(const tccl::Operation& operation) const;
  /// The same for a send or recv of this tensor.
  [[nodiscard]] bool try_run_message(const tccl::Operation& operation,
                                     const at::Tensor& tensor) const;

 private:
  void set_backend(c10d::ProcessGroup& group);
  [[nodiscard]] std::optional<int> looked_up(PyObject* global_rank) const;

  pybind11::object object_;
  bool is_default_ = false;
  bool is_bound_ = false;
  c10::intrusive_ptr<c10d::Backend> keepalive_;  // another thread may destroy the group meanwhile
  ProcessGroupCCL* backend_ = nullptr;
};

// ---- operations. Each is what the backend's method makes of the same arguments; nothing or false if
// these are not plain. The tensors are contiguous.

std::optional<tccl::Operation> allgather_of(const PlainGroup& group, const at::Tensor& output,
                                            const at::Tensor& input);

std::optional<tccl::Operation> reduce_scatter_of(const PlainGroup& group, const at::Tensor& output,
                                                 const at::Tensor& input,
                                                 std::optional<tccl::Reduction> reduction);

/// Whether it ran. An alltoallv of equal blocks, as always: other ranks may pass splits.
bool try_run_alltoall(const PlainGroup& group, const at::Tensor& output, const at::Tensor& input);

}  // namespace torch_ccl::fast
