// One call of the backend: checks its arguments and turns them into operations on plain memory.
//
//   Call call(kAllreduce, facts_);
//   const at::Tensor& tensor = call.only(tensors, "tensors");
//   call.check_output(tensor, "tensor");
//   void* data = call.writable(tensor, Call::with_contents);
//   call.add(tccl::allreduce(data, data, count_of(tensor), dtype_of(tensor), reduction));
//
// Tensors that are not contiguous are worked on in a contiguous copy, which is copied back when the
// operations are complete; those of an accelerator in host memory (staging.h). A refused argument
// is a ValueError that names the call, the argument, the rank and the group. Not thread-safe: a
// call belongs to the thread that builds it, then to the one that completes it.
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

#include "batches.h"
#include "dtypes.h"
#include "staging.h"
#include "tccl/communicator.h"

namespace torch_ccl {

using Tensors = std::vector<at::Tensor>;
using FewTensors = c10::SmallVector<at::Tensor, 2>;  // most calls: no memory of its own

/// What a method of the backend is called: in torch's enumeration, in the rows of its profiler that
/// this backend adds (pg::allreduce), and in torch's own rows (ccl:all_reduce), there behind the
/// backend's name.
struct Method {
  c10d::OpType type;
  const char* name;
  const char* title;
};

/// What a call must know of its group. Outlives its calls.
struct GroupFacts {
  int rank;
  int size;
  std::string name;
  std::string backend;  // as the sequence named it
  Batches batches{};
};

/// Raises ValueError with the call, the rank and the group in front of `problem`.
[[noreturn]] void refuse(const Method& method, const GroupFacts& group, const std::string& problem);

inline std::size_t count_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}
inline tccl::DType tccl_dtype(const at::Tensor& tensor) { return *dtype_of(tensor.scalar_type()); }

class Call {
 public:
  enum Contents : bool { without_contents, with_contents };

  Call(const Method& method, GroupFacts& group)
      : method_(&method), group_(&group), end_batch_on_throw_(group.batches) {}

  // ---- checks

  template <class... Parts>
  void require(bool good, const Parts&... problem) const {
    if (!good) refuse(*method_, *group_, c10::str(problem...));
  }
  void check_input(const at::Tensor& tensor, const char* argument) const;
  void check_output(const at::Tensor& tensor, const char* argument) const;
  void check_same_dtype(const at::Tensor& tensor, const char* argument, const at::Tensor& other,
                        const char* other_argument) const;
  void check_same_device(const at::Tensor& tensor, const at::Tensor& other) const;
  void check_rank(int64_t rank, const char* argument) const;
  /// One tensor for each rank of the group.
  void check_list_length(const Tensors& list, const char* argument) const;
  /// One output for each input.
  void check_same_length(const Tensors& outputs, const Tensors& inputs) const;
  [[nodiscard]] tccl::Reduction reduction(const c10d::ReduceOp& op, const at::Tensor& tensor) const;
  template <class T>
  T& only(std::vector<T>& items, const char* argument) const {
    require(items.size() == 1, "`", argument, "` must hold one entry (one device per rank), ",
            "but it holds ", items.size());
    return items.front();
  }

  // ---- memory, which the call keeps alive

  const void* readable(const at::Tensor& tensor);
  /// A copy if it overlaps the call's outputs, all of which must be known by now, in any other way
  /// than by beginning at `allowed`.
  const void* readable_apart(const at::Tensor& tensor, const void* allowed = nullptr);
  void* writable(const at::Tensor& tensor, Contents contents);
  [[nodiscard]] tccl::Block output_block(const at::Tensor& tensor) {
    return {writable(tensor, without_contents), count_of(tensor)};
  }
  [[nodiscard]] tccl::ConstBlock input_block(const at::Tensor& tensor) {
    return {readable_apart(tensor), count_of(tensor)};
  }
  std::span<const tccl::Block> keep(std::vector<tccl::Block> blocks);
  std::span<const tccl::ConstBlock> keep(std::vector<tccl::ConstBlock> blocks);

  // ---- what to do

  void add(const tccl::Operation& operation) { operations_.push_back(operation); }
  /// Instead of add(), for operations that depend on each other; `finish` runs when they are done.
  using Body = std::function<void(const tccl::OperationSequence::Run&)>;
  void set_body(std::uint32_t operations, Body body, std::function<void()> finish);
  /// For what the Work shows: its profiler rows, and its result.
  void set_tensors(at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs);

  [[nodiscard]] bool is_staged() const noexcept { return staging_ != nullptr; }
  /// For tensors of an accelerator, before what follows. A message that is to be sent is brought to
  /// the host; what collectives read, when it is their turn.
  void prepare_staging(std::size_t piece_bytes, std::chrono::milliseconds timeout,
                       Staging::Stop stop_if_asked);
  /// All of it has been checked.
  void accept() noexcept { end_batch_on_throw_.batches = nullptr; }
  [[nodiscard]] const Method& method() const noexcept { return *method_; }
  [[nodiscard]] const GroupFacts& group() const noexcept { return *group_; }
  /// Null if the call is anything but one plain operation.
  [[nodiscard]] const tccl::Operation* single() const noexcept {
    if (operations_.size() != 1 || (staging_ && !is_message())) return nullptr;
    return operations_.data();
  }
  /// All that is to be done. `call` is kept alive by what this returns.
  static tccl::OperationSequence sequence(const std::shared_ptr<const Call>& call);
  /// A receive's device may not have come to it yet.
  [[nodiscard]] bool may_finish_late() const noexcept {
    return staging_ && operations_.front().op == tccl::Op::recv;
  }
  [[nodiscard]] bool is_empty() const noexcept { return operations_.empty() && !body_; }
  [[nodiscard]] const FewTensors& inputs() const noexcept { return inputs_; }
  [[nodiscard]] const FewTensors& outputs() const noexcept { return outputs_; }
  /// Of an accelerator: the one on which the outputs are written.
  [[nodiscard]] std::optional<c10::Stream> output_stream() const {
    return staging_ ? std::optional(staging_->output_stream()) : std::nullopt;
  }
  /// To be called once the operations are complete: brings results to their tensors. False if it is
  /// to be called again; but that happens only if the call may finish late.
  bool try_finish() const;

 private:
  struct Copy {
    at::Tensor from, to;
  };
  [[nodiscard]] bool is_message() const noexcept {
    const tccl::Op op = operations_.front().op;
    return op == tccl::Op::send || op == tccl::Op::recv;
  }
  /// Where the operations find a contiguous tensor.
  void* data_of(const at::Tensor& tensor);
  void copy_results() const;

  /// torch does not end a batch in which a call has failed.
  struct EndBatchOnThrow {
    explicit EndBatchOnThrow(Batches& b) : batches(&b) {}
    EndBatchOnThrow(EndBatchOnThrow&& other) noexcept
        : batches(std::exchange(other.batches, nullptr)), before(other.before) {}
    ~EndBatchOnThrow() {
      if (batches && std::uncaught_exceptions() > before) batches->abandon();
    }
    Batches* batches;
    int before = std::uncaught_exceptions();
  };

  const Method* method_;
  GroupFacts* group_;
  EndBatchOnThrow end_batch_on_throw_;
  FewTensors inputs_;
  FewTensors outputs_;
  c10::SmallVector<tccl::Operation, 1> operations_;
  std::vector<std::vector<tccl::Block>> blocks_;  // what the operations' spans refer to
  std::vector<std::vector<tccl::ConstBlock>> const_blocks_;
  FewTensors memory_;   // what is read and written
  FewTensors written_;  // those of them that are written
  std::vector<Copy> results_;
  std::unique_ptr<Staging> staging_;  // if the tensors are an accelerator's
  Body body_;
  std::uint32_t body_operations_ = 0;
  std::function<void()> finish_;
};

}  // namespace torch_ccl
