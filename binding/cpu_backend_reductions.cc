// allreduce, reduce and reduce_scatter.
#include "cpu_backend.h"

#include "sparse.h"

namespace torch_ccl {
namespace {

using c10d::OpType;

constexpr Method kAllreduce{OpType::ALLREDUCE, "allreduce", "all_reduce"};
constexpr Method kAllreduceCoalesced{OpType::ALLREDUCE_COALESCED, "allreduce_coalesced",
                                     "all_reduce"};
constexpr Method kAllreduceSparse{OpType::_ALLREDUCE_SPARSE, "allreduce_sparse",
                                  "sparse_all_reduce"};
constexpr Method kReduce{OpType::REDUCE, "reduce", "reduce"};
constexpr Method kReduceScatter{OpType::REDUCE_SCATTER, "reduce_scatter", "reduce_scatter"};
constexpr Method kReduceScatterBase{OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base",
                                    "_reduce_scatter_base"};
constexpr Method kReduceScatterTensorCoalesced{
    kReduceScatterCoalescedType, "reduce_scatter_tensor_coalesced", "_reduce_scatter_base"};

void add_allreduce(CollectiveRequest& request, const at::Tensor& tensor, const c10d::ReduceOp& op,
                   tccl::WireFormat format = tccl::WireFormat::by_setting) {
  request.check_output(tensor, "tensor");
  const tccl::Reduction reduction = request.reduction(op, tensor);
  void* data = request.output_data(tensor, CollectiveRequest::keep_contents);
  tccl::Operation operation =
      tccl::allreduce(data, data, count_of(tensor), tccl_dtype(tensor), reduction);
  operation.wire_format = format;
  request.add(operation);
  request.add_tensors(tensor, tensor);
}

void add_reduce_scatter(CollectiveRequest& request, const at::Tensor& output,
                        const at::Tensor& input, const c10d::ReduceOp& op) {
  request.check_input(input, "input");
  request.check_output(output, "output");
  request.check_same_dtype(output, "output", input, "input");
  const int size = request.group().size;
  request.require(input.numel() == output.numel() * size, "`input` has ", input.numel(),
                  " elements, but ", size, " ranks times ", output.numel(),
                  " elements of `output` are ", output.numel() * size);
  const tccl::Reduction reduction = request.reduction(op, input);
  void* out = request.output_data(output, CollectiveRequest::discard_contents);
  const void* in = request.unaliased_input_data(input);
  request.add(tccl::reduce_scatter(in, out, count_of(output), tccl_dtype(output), reduction));
  request.add_tensors(input, output);
}

}  // namespace

CpuBackend::WorkPtr CpuBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  CollectiveRequest request(kAllreduce, group_);
  const at::Tensor& tensor = request.single_entry(tensors, "tensors");
  if (tensor.defined() && tensor.layout() == at::kSparse)
    return CpuBackend::allreduce_sparse(tensors, options);
  add_allreduce(request, tensor, options.reduceOp);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::allreduce_compressed(Tensors& tensors,
                                                     const c10d::AllreduceOptions& options,
                                                     tccl::WireFormat format) {
  CollectiveRequest request(kAllreduce, group_);
  add_allreduce(request, request.single_entry(tensors, "tensors"), options.reduceOp, format);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  CollectiveRequest request(kAllreduceCoalesced, group_);
  for (const at::Tensor& tensor : tensors) add_allreduce(request, tensor, options.reduceOp);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::allreduce_sparse(Tensors& tensors,
                                                 const c10d::AllreduceOptions& options) {
  CollectiveRequest request(kAllreduceSparse, group_);
  const at::Tensor& tensor = request.single_entry(tensors, "tensors");
  add_sparse_allreduce(request, tensor, options.reduceOp);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  CollectiveRequest request(kReduce, group_);
  const at::Tensor& tensor = request.single_entry(tensors, "tensors");
  const int root = request.checked_root(options.rootRank);
  const bool is_root = root == getRank();
  is_root ? request.check_output(tensor, "tensor") : request.check_input(tensor, "tensor");
  const tccl::Reduction reduction = request.reduction(options.reduceOp, tensor);
  void* out = is_root ? request.output_data(tensor, CollectiveRequest::keep_contents) : nullptr;
  const void* in = is_root ? out : request.input_data(tensor);
  request.add(tccl::reduce(in, out, count_of(tensor), tccl_dtype(tensor), reduction, root));
  request.add_tensors(tensors, tensors);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  CollectiveRequest request(kReduceScatter, group_);
  const at::Tensor& output = request.single_entry(outputs, "output");
  const Tensors& input = request.single_entry(inputs, "input_list");
  request.check_output(output, "output");
  request.check_input_list(input, "input_list", output, "output");
  const at::Tensor& own = input[static_cast<std::size_t>(getRank())];
  request.require(own.numel() == output.numel(), "entry ", getRank(), " of `input_list`, which is ",
                  "reduced into this rank's output, has ", own.numel(),
                  " elements, but `output` has ", output.numel());
  const tccl::Reduction reduction = request.reduction(options.reduceOp, output);
  void* out = request.output_data(output, CollectiveRequest::discard_contents);
  const std::span<const tccl::ConstBlock> blocks = request.input_blocks(input);
  request.add(tccl::reduce_scatterv(blocks, out, tccl_dtype(output), reduction));
  request.add_tensors(input, outputs);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  CollectiveRequest request(kReduceScatterBase, group_);
  add_reduce_scatter(request, output, input, options.reduceOp);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  CollectiveRequest request(kReduceScatterTensorCoalesced, group_);
  request.check_same_length(outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    add_reduce_scatter(request, outputs[i], inputs[i], options.reduceOp);
  return run_request(std::move(request), options);
}

}  // namespace torch_ccl
