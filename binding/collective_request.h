// One call of the backend, a collective or a message: checks the arguments and translates tensors
// to operations on memory.
//
//   CollectiveRequest request(kAllreduce, group_);
//   const at::Tensor& tensor = request.single_entry(tensors, "tensors");
//   request.check_output(tensor, "tensor");
//   void* data = request.output_data(tensor, CollectiveRequest::keep_contents);
//   request.add(tccl::allreduce(data, data, count_of(tensor), tccl_dtype(tensor), reduction));
//
// A tensor that is not contiguous is replaced by a contiguous copy, which is copied back when the
// operations are complete; one of an accelerator by host memory (staging.h). An invalid argument
// throws InvalidArgument with the method, the argument, the rank and the group.
// Thread safety: none; a request belongs to the thread that builds it, then to the one that
// completes it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <c10/util/StringUtil.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "coalescing_state.h"
#include "dtypes.h"
#include "staging.h"
#include "tccl/communicator.h"
#include "torch_version.h"

namespace torch_ccl {

using Tensors = std::vector<at::Tensor>;
using SmallTensors = c10::SmallVector<at::Tensor, 2>;  // enough for most calls: no allocation

/// A method of the backend.
struct Method {
  c10d::OpType type;
  const char* name;            // in error messages and in the profiler: pg::allreduce
  const char* profiler_title;  // the same as for torch's own backends: ccl:all_reduce
};

/// What a request knows of its group. Outlives its requests.
struct GroupInfo {
  int rank;
  int size;
  std::string name;
  std::string backend;  // the name that the program asked for
  CoalescingState coalescing{};
};

/// Throws InvalidArgument; the message begins with the method, the rank and the group.
[[noreturn]] void throw_invalid_argument(const Method& method, const GroupInfo& group,
                                         const std::string& problem);

inline std::size_t count_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}
inline tccl::DType tccl_dtype(const at::Tensor& tensor) { return *dtype_of(tensor.scalar_type()); }

class CollectiveRequest {
 public:
  /// Whether an operation reads an output tensor's contents before it writes them.
  enum Contents : bool { discard_contents, keep_contents };

  CollectiveRequest(const Method& method, GroupInfo& group)
      : method_(&method), group_(&group), discard_on_throw_(group.coalescing) {}

  // ---- checks of arguments

  template <class... Parts>
  void require(bool condition, const Parts&... problem) const {
    if (!condition) throw_invalid_argument(*method_, *group_, c10::str(problem...));
  }
  void check_input(const at::Tensor& tensor, const char* argument) const;
  void check_output(const at::Tensor& tensor, const char* argument) const;
  void check_same_dtype(const at::Tensor& tensor, const char* argument, const at::Tensor& other,
                        const char* other_argument) const;
  void check_same_device(const at::Tensor& tensor, const at::Tensor& other) const;
  void check_rank(int64_t rank, const char* argument) const;
  /// `root` as an int, if it is a rank of the group.
  [[nodiscard]] int checked_root(int64_t root) const;
  /// One tensor for each rank of the group.
  void check_list_length(const Tensors& list, const char* argument) const;
  /// One tensor for each rank, each of them valid and of the dtype of `other`.
  void check_input_list(const Tensors& list, const char* argument, const at::Tensor& other,
                        const char* other_argument) const;
  void check_output_list(const Tensors& list, const char* argument, const at::Tensor& other,
                         const char* other_argument) const;
  /// One output for each input.
  void check_same_length(const Tensors& outputs, const Tensors& inputs) const;
  [[nodiscard]] tccl::Reduction reduction(const c10d::ReduceOp& op, const at::Tensor& tensor) const;
  template <class T>
  T& single_entry(std::vector<T>& items, const char* argument) const {
    require(items.size() == 1, "`", argument, "` must hold one entry (one device per rank), ",
            "but it holds ", items.size());
    return items.front();
  }

  // ---- memory of the tensors, kept alive by the request

  const void* input_data(const at::Tensor& tensor);
  /// The same for a tensor that may overlap the request's outputs, all of which must have been
  /// added: an overlapping tensor is copied, unless it begins at `in_place_address`.
  const void* unaliased_input_data(const at::Tensor& tensor,
                                   const void* in_place_address = nullptr);
  void* output_data(const at::Tensor& tensor, Contents contents);
  [[nodiscard]] tccl::Block output_block(const at::Tensor& tensor) {
    return {output_data(tensor, discard_contents), count_of(tensor)};
  }
  [[nodiscard]] tccl::ConstBlock input_block(const at::Tensor& tensor) {
    return {unaliased_input_data(tensor), count_of(tensor)};
  }
  [[nodiscard]] std::span<const tccl::Block> output_blocks(const Tensors& list);
  [[nodiscard]] std::span<const tccl::ConstBlock> input_blocks(const Tensors& list);
  std::span<const tccl::Block> keep_alive(std::vector<tccl::Block> blocks);
  std::span<const tccl::ConstBlock> keep_alive(std::vector<tccl::ConstBlock> blocks);

  // ---- operations

  void add(const tccl::Operation& operation) { operations_.push_back(operation); }
  /// Instead of add(), for operations that depend on each other's results. `body` runs
  /// `operations` of them; `finish` runs when they are complete.
  using Body = std::function<void(const tccl::OperationList::Run&)>;
  void set_body(std::uint32_t operations, Body body, std::function<void()> finish);
  /// Adds the tensors that the profiler shows, and the outputs that Work::result() returns.
  void add_tensors(at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs);

  // ---- execution

  [[nodiscard]] bool is_staged() const noexcept { return staging_ != nullptr; }
  /// If is_staged(), before the operations are run. Copies the tensor of a send to the host;
  /// collectives copy their inputs when they run.
  void prepare_staging(std::size_t chunk_bytes, std::chrono::milliseconds timeout,
                       Staging::WhileWaiting while_waiting);
  /// To be called when all arguments have been checked. From then on a failure does not discard the
  /// coalescing block here; CpuBackend::run_request() does that.
  void arguments_checked() noexcept { discard_on_throw_.coalescing = nullptr; }
  [[nodiscard]] const Method& method() const noexcept { return *method_; }
  [[nodiscard]] const GroupInfo& group() const noexcept { return *group_; }
  [[nodiscard]] bool is_empty() const noexcept { return operations_.empty() && !body_; }
  /// The operation, if it is one that needs nothing else while it runs; otherwise null.
  [[nodiscard]] const tccl::Operation* single_operation() const noexcept {
    if (operations_.size() != 1 || (staging_ && !is_point_to_point())) return nullptr;
    return operations_.data();
  }
  /// All operations. The result keeps `request` alive.
  static tccl::OperationList operation_list(
      const std::shared_ptr<const CollectiveRequest>& request);
  /// When the message has arrived, the device may not have reached the receive yet.
  [[nodiscard]] bool is_staged_receive() const noexcept {
    return staging_ && operations_.front().op == tccl::Op::recv;
  }
  [[nodiscard]] const SmallTensors& inputs() const noexcept { return inputs_; }
  [[nodiscard]] const SmallTensors& outputs() const noexcept { return outputs_; }
  /// The stream on which the outputs are written, if they are an accelerator's.
  [[nodiscard]] std::optional<c10::Stream> output_stream() const {
    return staging_ ? std::optional(staging_->output_stream()) : std::nullopt;
  }
  /// Whether try_write_results() does anything.
  [[nodiscard]] bool writes_results() const noexcept {
    return staging_ || finish_ || !results_.empty();
  }
  /// When the operations are complete: copies results to the tensors that were replaced. Returns
  /// false if it must be called again; only a staged receive does.
  bool try_write_results() const;

 private:
  struct Copy {
    at::Tensor from, to;
  };
  /// Ends the thread's coalescing block if an argument is refused: torch does not end it then.
  struct DiscardOnThrow {
    explicit DiscardOnThrow(CoalescingState& state) : coalescing(&state) {}
    DiscardOnThrow(DiscardOnThrow&& other) noexcept
        : coalescing(std::exchange(other.coalescing, nullptr)),
          exceptions_before(other.exceptions_before) {}
    ~DiscardOnThrow() {
      if (coalescing && std::uncaught_exceptions() > exceptions_before) coalescing->discard();
    }
    CoalescingState* coalescing;
    int exceptions_before = std::uncaught_exceptions();
  };

  [[nodiscard]] bool is_point_to_point() const noexcept {
    const tccl::Op op = operations_.front().op;
    return op == tccl::Op::send || op == tccl::Op::recv;
  }
  /// The address that operations use for a contiguous tensor.
  void* host_data(const at::Tensor& contiguous);
  void* copied_output_data(const at::Tensor& tensor, const at::Tensor& copy);
  void* written_data(const at::Tensor& target);
  void copy_results() const;

  const Method* method_;
  GroupInfo* group_;
  DiscardOnThrow discard_on_throw_;
  SmallTensors inputs_;
  SmallTensors outputs_;
  c10::SmallVector<tccl::Operation, 1> operations_;
  std::vector<std::vector<tccl::Block>> blocks_;  // what the operations' spans refer to
  std::vector<std::vector<tccl::ConstBlock>> const_blocks_;
  SmallTensors used_;     // the tensors, or their copies, that the operations read and write
  SmallTensors written_;  // those of them that are written
  std::vector<Copy> results_;
  std::unique_ptr<Staging> staging_;  // if the tensors are an accelerator's
  Body body_;
  std::uint32_t body_operations_ = 0;
  std::function<void()> finish_;
};

}  // namespace torch_ccl
