// broadcast, allgather, gather, scatter and alltoall: collectives that move data unchanged.
#include "cpu_backend.h"

#include <algorithm>
#include <numeric>

namespace torch_ccl {
namespace {

using c10d::OpType;

constexpr Method kBroadcast{OpType::BROADCAST, "broadcast", "broadcast"};
constexpr Method kAllgather{OpType::ALLGATHER, "allgather", "all_gather"};
constexpr Method kAllgatherBase{OpType::_ALLGATHER_BASE, "_allgather_base", "_all_gather_base"};
constexpr Method kAllgatherCoalesced{OpType::ALLGATHER_COALESCED, "allgather_coalesced",
                                     "all_gather"};
constexpr Method kAllgatherIntoTensorCoalesced{
    kAllgatherIntoCoalescedType, "allgather_into_tensor_coalesced", "_all_gather_base"};
constexpr Method kGather{OpType::GATHER, "gather", "gather"};
constexpr Method kScatter{OpType::SCATTER, "scatter", "scatter"};
constexpr Method kAlltoallBase{OpType::ALLTOALL_BASE, "alltoall_base", "all_to_all"};
constexpr Method kAlltoall{OpType::ALLTOALL, "alltoall", "all_to_all"};

void add_allgatherv(CollectiveRequest& request, const Tensors& outputs, const at::Tensor& input) {
  request.check_input(input, "input");
  request.check_output_list(outputs, "output_list", input, "input");
  const at::Tensor& own = outputs[static_cast<std::size_t>(request.group().rank)];
  request.require(own.numel() == input.numel(), "entry ", request.group().rank,
                  " of `output_list`, which receives ", "this rank's own input, has ", own.numel(),
                  " elements, but `input` has ", input.numel());
  const std::span<const tccl::Block> blocks = request.output_blocks(outputs);
  const void* in = request.unaliased_input_data(input, own.const_data_ptr());
  request.add(tccl::allgatherv(in, blocks, tccl_dtype(input)));
  request.add_tensors(input, outputs);
}

void add_allgather(CollectiveRequest& request, const at::Tensor& output, const at::Tensor& input) {
  request.check_input(input, "input");
  request.check_output(output, "output");
  request.check_same_dtype(output, "output", input, "input");
  const int size = request.group().size;
  // The last words are those of torch's own backends, which programs look for.
  request.require(output.numel() == input.numel() * size, "`output` has ", output.numel(),
                  " elements, but ", size, " ranks times ", input.numel(),
                  " elements of `input` are ", input.numel() * size,
                  ": output tensor size must be equal to world_size times input tensor size");
  void* out = request.output_data(output, CollectiveRequest::discard_contents);
  const auto* own_block =
      static_cast<const char*>(output.const_data_ptr()) + input.nbytes() * request.group().rank;
  const void* in = request.unaliased_input_data(input, own_block);
  request.add(tccl::allgather(in, out, count_of(input), tccl_dtype(input)));
  request.add_tensors(input, output);
}

// The number of elements for each rank.
std::vector<int64_t> split_counts(const CollectiveRequest& request, const at::Tensor& tensor,
                                  const std::vector<int64_t>& splits, int size,
                                  const char* argument) {
  if (splits.empty()) {
    request.require(tensor.numel() % size == 0, "`", argument, "` has ", tensor.numel(),
                    " elements, which is not a multiple of the ", size, " ranks; pass its splits");
    return std::vector<int64_t>(static_cast<std::size_t>(size), tensor.numel() / size);
  }
  request.require(splits.size() == static_cast<std::size_t>(size), "the splits of `", argument,
                  "` must be one per rank, ", size, " in all, but there are ", splits.size());
  request.require(tensor.dim() > 0, "`", argument, "` has no dimension to split");
  const int64_t rows = tensor.size(0);
  std::vector<int64_t> counts = splits;
  request.require(
      std::ranges::all_of(splits, [&](int64_t split) { return split >= 0 && split <= rows; }),
      "a split of `", argument, "` is negative or larger than its ", rows, " rows");
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  request.require(sum == rows, "the splits of `", argument, "` add up to ", sum, ", but it has ",
                  rows, " rows");
  for (int64_t& count : counts) count *= rows == 0 ? 0 : tensor.numel() / rows;
  return counts;
}

template <class Block, class Pointer>
std::vector<Block> blocks_at(Pointer* data, const std::vector<int64_t>& counts,
                             std::size_t element_bytes) {
  std::vector<Block> blocks;
  for (const int64_t count : counts) {
    blocks.push_back({data, static_cast<std::size_t>(count)});
    data += static_cast<std::size_t>(count) * element_bytes;
  }
  return blocks;
}

}  // namespace

CpuBackend::WorkPtr CpuBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  CollectiveRequest request(kBroadcast, group_);
  const at::Tensor& tensor = request.single_entry(tensors, "tensors");
  const int root = request.checked_root(options.rootRank);
  const bool is_root = root == getRank();
  is_root ? request.check_input(tensor, "tensor") : request.check_output(tensor, "tensor");
  void* data = is_root ? const_cast<void*>(request.input_data(tensor))  // the root only reads
                       : request.output_data(tensor, CollectiveRequest::discard_contents);
  request.add(tccl::broadcast(data, count_of(tensor), tccl_dtype(tensor), root));
  request.add_tensors(tensors, tensors);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  CollectiveRequest request(kAllgather, group_);
  const at::Tensor& input = request.single_entry(inputs, "input");
  add_allgatherv(request, request.single_entry(outputs, "output_list"), input);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  CollectiveRequest request(kAllgatherCoalesced, group_);
  request.require(outputs.size() == static_cast<std::size_t>(getSize()),
                  "`output_lists` must hold ", "one list per rank, ", getSize(),
                  " in all, but it holds ", outputs.size());
  for (const Tensors& list : outputs) request.check_same_length(list, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors output_per_rank;
    for (const Tensors& list : outputs) output_per_rank.push_back(list[i]);
    add_allgatherv(request, output_per_rank, inputs[i]);
  }
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  CollectiveRequest request(kAllgatherBase, group_);
  add_allgather(request, output, input);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  CollectiveRequest request(kAllgatherIntoTensorCoalesced, group_);
  request.check_same_length(outputs, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) add_allgather(request, outputs[i], inputs[i]);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  CollectiveRequest request(kGather, group_);
  const at::Tensor& input = request.single_entry(inputs, "input");
  request.check_input(input, "input");
  const int root = request.checked_root(options.rootRank);
  std::span<const tccl::Block> blocks;
  Tensors results;
  if (root == getRank()) {
    results = request.single_entry(outputs, "gather_list");
    request.check_output_list(results, "gather_list", input, "input");
    blocks = request.output_blocks(results);
  } else {
    request.require(outputs.empty(), "`gather_list` must be passed on the root only, rank ", root);
  }
  const tccl::ConstBlock in = request.input_block(input);
  request.add(tccl::gatherv(in, blocks, tccl_dtype(input), root));
  request.add_tensors(inputs, results);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::gather_into(at::Tensor& output, at::Tensor& input,
                                            const c10d::GatherOptions& options) {
  std::vector<Tensors> outputs;
  if (options.rootRank == getRank()) {
    const CollectiveRequest request(kGather, group_);
    request.require(output.is_contiguous(), "`gather_tensor` is not contiguous");
    request.require(output.numel() == getSize() * input.numel(), "`gather_tensor` has ",
                    output.numel(), " elements, not ", getSize(), " x ", input.numel());
    outputs.push_back(output.view({getSize(), input.numel()}).unbind());
  }
  Tensors inputs{input};
  return gather(outputs, inputs, options);
}

CpuBackend::WorkPtr CpuBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  CollectiveRequest request(kScatter, group_);
  const at::Tensor& output = request.single_entry(outputs, "output");
  request.check_output(output, "output");
  const int root = request.checked_root(options.rootRank);
  const tccl::Block out = request.output_block(output);
  std::span<const tccl::ConstBlock> blocks;
  Tensors sources;
  if (root == getRank()) {
    sources = request.single_entry(inputs, "scatter_list");
    request.check_input_list(sources, "scatter_list", output, "output");
    blocks = request.input_blocks(sources);
  } else {
    request.require(inputs.empty(), "`scatter_list` must be passed on the root only, rank ", root);
  }
  request.add(tccl::scatterv(blocks, out, tccl_dtype(output), root));
  request.add_tensors(sources, outputs);
  return run_request(std::move(request), options);
}

// Always the uneven form, alltoallv: some ranks may pass splits and others not.
CpuBackend::WorkPtr CpuBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<int64_t>& output_splits,
                                              std::vector<int64_t>& input_splits,
                                              const c10d::AllToAllOptions& options) {
  CollectiveRequest request(kAlltoallBase, group_);
  request.check_input(input, "input");
  request.check_output(output, "output");
  request.check_same_dtype(output, "output", input, "input");
  const auto out_counts = split_counts(request, output, output_splits, getSize(), "output");
  const auto in_counts = split_counts(request, input, input_splits, getSize(), "input");
  auto* out = static_cast<char*>(request.output_data(output, CollectiveRequest::discard_contents));
  const auto* in = static_cast<const char*>(request.unaliased_input_data(input));
  const std::size_t element_bytes = input.element_size();
  request.add(
      tccl::alltoallv(request.keep_alive(blocks_at<tccl::ConstBlock>(in, in_counts, element_bytes)),
                      request.keep_alive(blocks_at<tccl::Block>(out, out_counts, element_bytes)),
                      tccl_dtype(input)));
  request.add_tensors(input, output);
  return run_request(std::move(request), options);
}

CpuBackend::WorkPtr CpuBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  CollectiveRequest request(kAlltoall, group_);
  request.check_list_length(outputs, "output_list");
  const at::Tensor& first = outputs.front();
  request.check_output_list(outputs, "output_list", first, "output_list");
  request.check_input_list(inputs, "input_list", first, "output_list");
  const std::span<const tccl::Block> out = request.output_blocks(outputs);
  const std::span<const tccl::ConstBlock> in = request.input_blocks(inputs);
  request.add(tccl::alltoallv(in, out, tccl_dtype(first)));
  request.add_tensors(inputs, outputs);
  return run_request(std::move(request), options);
}

}  // namespace torch_ccl
