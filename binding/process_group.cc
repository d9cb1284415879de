#include "process_group.h"

#include <ATen/MemoryOverlap.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "dtypes.h"
#include "errors.h"
#include "work.h"

namespace torch_ccl {

/// One collective: what to do, on which memory, and what is left to do when it is done.
struct Call {
  c10d::OpType type;
  const char* title;  // "ccl:" and the name of the call, for the profiler and for messages
  tccl::Operation operation = {};
  std::vector<tccl::Block> blocks = {};  // what operation.out_blocks refers to
  std::vector<at::Tensor> memory = {};   // what the operation reads and writes, kept alive
  struct Copy {
    at::Tensor from, to;
  };
  std::vector<Copy> results = {};  // from contiguous stand-ins to the caller's tensors

  const void* readable(const at::Tensor& tensor);
  void* writable(const at::Tensor& tensor, bool with_contents);
  void copy_results() const;
};

namespace {

using Tensors = std::vector<at::Tensor>;

// ---- checks: each message names the call and the argument

void check_tensor(const Call& call, const at::Tensor& tensor, const char* argument) {
  TORCH_CHECK_VALUE(tensor.defined(), call.title, ": `", argument, "` is an undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, call.title, ": `", argument,
                    "` must be dense, but its layout is ", tensor.layout());
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), call.title, ": `", argument,
                    "` must be on the CPU, but it is on ", tensor.device());
  TORCH_CHECK_VALUE(dtype_of(tensor.scalar_type()), call.title, ": `", argument,
                    "` has the unsupported dtype ", tensor.scalar_type());
}

void check_output(const Call& call, const at::Tensor& tensor, const char* argument) {
  check_tensor(call, tensor, argument);
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, call.title, ": `",
                    argument, "` cannot be written: several of its elements share one place in ",
                    "memory, as after expand(); pass a clone()");
}

void check_same_dtype(const Call& call, const at::Tensor& output, const at::Tensor& input,
                      const char* output_argument) {
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), call.title, ": `", output_argument,
                    "` has dtype ", output.scalar_type(), ", but the input has dtype ",
                    input.scalar_type());
}

template <class T>
T& only(const Call& call, std::vector<T>& items, const char* argument) {
  TORCH_CHECK_VALUE(items.size() == 1, call.title, ": `", argument,
                    "` must hold one entry (one device per rank), but it holds ", items.size());
  return items.front();
}

// ---- memory

// Whether the elements lie in memory one after the other, with the values that the tensor shows.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

at::Tensor contiguous_room(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

tccl::DType tccl_dtype(const at::Tensor& tensor) { return *dtype_of(tensor.scalar_type()); }

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

// ---- reductions

double factor_of(const c10d::ReduceOp& op) {
  const auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement, "ccl: `op` is PREMUL_SUM, but it carries no factor");
  const at::Tensor& tensor = supplement->tensor_factor;
  return tensor.defined() ? tensor.item<double>() : supplement->double_factor;
}

tccl::Reduction reduction_of(const Call& call, const c10d::ReduceOp& op) {
  const auto known = reduce_op_of(op.op_);
  TORCH_CHECK_VALUE(known, call.title, ": `op` is not a reduction (", int{op.op_}, ")");
  return {*known, *known == tccl::ReduceOp::premul_sum ? factor_of(op) : 1.0};
}

}  // namespace

const void* Call::readable(const at::Tensor& tensor) {
  if (is_plain(tensor)) {
    memory.push_back(tensor);
  } else {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    memory.push_back(contiguous_room(tensor).copy_(tensor));
  }
  return memory.back().const_data_ptr();
}

void* Call::writable(const at::Tensor& tensor, bool with_contents) {
  if (is_plain(tensor)) {
    memory.push_back(tensor);
  } else {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    at::Tensor copy = contiguous_room(tensor);
    if (with_contents) copy.copy_(tensor);
    results.push_back({copy, tensor});
    memory.push_back(std::move(copy));
  }
  return memory.back().mutable_data_ptr();
}

// Below autograd, because the collectives themselves are: they write a leaf that requires grad, and
// an inference tensor outside of inference mode, like any other.
void Call::copy_results() const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const Copy& copy : results) copy.to.copy_(copy.from);
}

ProcessGroupCCL::ProcessGroupCCL(std::shared_ptr<tccl::Communicator> communicator,
                                 c10::intrusive_ptr<Options> options)
    : Backend(communicator->rank(), communicator->size()),
      communicator_(std::move(communicator)),
      options_(std::move(options)),
      timeout_(options_->timeout) {
  init();
}

// Python may drop the last reference, and it does so with the GIL held; but close() waits for
// operations whose callbacks may need the GIL.
ProcessGroupCCL::~ProcessGroupCCL() {
  std::optional<pybind11::gil_scoped_release> without_gil;
  if (Py_IsInitialized() && PyGILState_Check()) without_gil.emplace();
  communicator_->close();
}

void ProcessGroupCCL::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  timeout_.store(timeout, std::memory_order_relaxed);
}

void ProcessGroupCCL::abort() {
  communicator_->abort("abort() was called on rank " + std::to_string(getRank()));
}

std::chrono::milliseconds ProcessGroupCCL::effective(std::chrono::milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : timeout_.load(std::memory_order_relaxed);
}

template <class CallOptions>
c10::intrusive_ptr<c10d::Work> ProcessGroupCCL::launch(Call call, const Tensors& inputs,
                                                       Tensors outputs,
                                                       const CallOptions& options) {
  auto work = c10::make_intrusive<WorkCCL>(call.type, call.title, inputs, std::move(outputs),
                                           communicator_->next_sequence());
  const auto timeout = effective(options.timeout);
  try {
    if (options.asyncOp) {
      auto kept = std::make_shared<const Call>(std::move(call));
      const auto operation =
          communicator_->start(kept->operation, {.timeout = timeout, .keepalive = kept});
      WorkCCL::follow(work, operation, [kept] { kept->copy_results(); });
    } else {
      communicator_->run(call.operation, {.timeout = timeout});
      call.copy_results();
      work->complete(nullptr);
    }
  } catch (const tccl::Error& error) {
    throw_as_torch(error);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupCCL::allreduce(Tensors& tensors,
                                                          const c10d::AllreduceOptions& options) {
  Call call{c10d::OpType::ALLREDUCE, "ccl:all_reduce"};
  const at::Tensor& tensor = only(call, tensors, "tensors");
  check_output(call, tensor, "tensor");
  const tccl::Reduction reduction = reduction_of(call, options.reduceOp);
  void* data = call.writable(tensor, /*with_contents=*/true);
  call.operation = tccl::allreduce(data, data, count_of(tensor), tccl_dtype(tensor), reduction);
  return launch(std::move(call), tensors, tensors, options);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupCCL::broadcast(Tensors& tensors,
                                                          const c10d::BroadcastOptions& options) {
  Call call{c10d::OpType::BROADCAST, "ccl:broadcast"};
  const at::Tensor& tensor = only(call, tensors, "tensors");
  check_output(call, tensor, "tensor");
  const int64_t root = options.rootRank;
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), call.title, ": `root` must be a rank of the ",
                    "group, 0 to ", getSize() - 1, ", but it is ", root);
  void* data = call.writable(tensor, /*with_contents=*/root == getRank());
  call.operation =
      tccl::broadcast(data, count_of(tensor), tccl_dtype(tensor), static_cast<int>(root));
  return launch(std::move(call), tensors, tensors, options);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupCCL::allgather(std::vector<Tensors>& outputs,
                                                          Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  Call call{c10d::OpType::ALLGATHER, "ccl:all_gather"};
  const at::Tensor& input = only(call, inputs, "input");
  const Tensors& output = only(call, outputs, "output list");
  check_tensor(call, input, "input");
  TORCH_CHECK_VALUE(output.size() == static_cast<std::size_t>(getSize()), call.title,
                    ": `output list` must hold one tensor per rank, ", getSize(),
                    " in all, but it holds ", output.size());
  for (const at::Tensor& tensor : output) {
    check_output(call, tensor, "output list");
    check_same_dtype(call, tensor, input, "output list");
  }
  TORCH_CHECK_VALUE(output[getRank()].numel() == input.numel(), call.title, ": entry ", getRank(),
                    " of `output list`, which is for this rank's own input, has ",
                    output[getRank()].numel(), " elements, but the input has ", input.numel());
  const void* in = call.readable(input);
  for (const at::Tensor& tensor : output) {
    call.blocks.push_back({call.writable(tensor, /*with_contents=*/false), count_of(tensor)});
  }
  call.operation = tccl::allgatherv(in, call.blocks, tccl_dtype(input));
  return launch(std::move(call), inputs, output, options);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupCCL::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Call call{c10d::OpType::_ALLGATHER_BASE, "ccl:_all_gather_base"};
  check_tensor(call, input, "input");
  check_output(call, output, "output");
  check_same_dtype(call, output, input, "output");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), call.title, ": `output` has ",
                    output.numel(), " elements, but ", getSize(), " ranks times ", input.numel(),
                    " elements of input are ", input.numel() * getSize());
  const void* in = call.readable(input);
  void* out = call.writable(output, /*with_contents=*/false);
  call.operation = tccl::allgather(in, out, count_of(input), tccl_dtype(input));
  return launch(std::move(call), {input}, {output}, options);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupCCL::barrier(const c10d::BarrierOptions& options) {
  return launch({c10d::OpType::BARRIER, "ccl:barrier", tccl::barrier()}, {}, {}, options);
}

}  // namespace torch_ccl
