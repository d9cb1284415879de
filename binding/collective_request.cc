#include "collective_request.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "errors.h"

namespace torch_ccl {
namespace {

// Below autograd, as collectives are: they also read and write a leaf that requires grad, and an
// inference tensor outside of inference mode.
void copy_below_autograd(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from);
}

// Whether the tensor's memory holds its elements in order, without a lazy conjugate or negation.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

at::Tensor contiguous_empty(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor contiguous_copy(const at::Tensor& tensor) {
  at::Tensor copy = contiguous_empty(tensor);
  copy_below_autograd(copy, tensor);
  return copy;
}

// What the sizes and strides of a tensor can reach, from the beginning of its storage.
std::size_t storage_bytes_needed(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return static_cast<std::size_t>(last + 1) * tensor.itemsize();
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {  // both contiguous
  const auto* a_data = static_cast<const char*>(a.const_data_ptr());
  const auto* b_data = static_cast<const char*>(b.const_data_ptr());
  return std::less<>()(a_data, b_data + b.nbytes()) && std::less<>()(b_data, a_data + a.nbytes());
}

// Whether two tensors of the list may overlap.
bool any_overlap(const Tensors& list) {
  struct Range {
    std::uintptr_t begin, end;
  };
  c10::SmallVector<Range, 8> ranges;
  for (const at::Tensor& tensor : list) {
    if (tensor.numel() == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    const std::size_t offset =
        static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
    ranges.push_back({begin, begin + storage_bytes_needed(tensor) - offset});
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return std::ranges::adjacent_find(ranges, [](const Range& a, const Range& b) {
           return a.end > b.begin;
         }) != ranges.end();
}

}  // namespace

void throw_invalid_argument(const Method& method, const GroupInfo& group,
                            const std::string& problem) {
  throw_invalid_argument(
      c10::str(method.name, " on rank ", group.rank, " of group ", group.name, ": ", problem));
}

void CollectiveRequest::check_input(const at::Tensor& tensor, const char* argument) const {
  require(tensor.defined(), "`", argument, "` is an undefined tensor");
  require(tensor.layout() == at::kStrided, "`", argument, "` must be dense, but its layout is ",
          tensor.layout());
  require(tensor.is_cpu() || at::accelerator::isAccelerator(tensor.device().type()), "`", argument,
          "` must be on the CPU or an accelerator, but it is on ", tensor.device());
  require(dtype_of(tensor.scalar_type()).has_value(), "`", argument, "` has the unsupported dtype ",
          tensor.scalar_type());
  const std::size_t needed = storage_bytes_needed(tensor);
  require(needed <= tensor.storage().nbytes(), "`", argument, "` needs a storage of ", needed,
          " bytes, but its storage has ", tensor.storage().nbytes(), ", as after resize_(0)");
}

void CollectiveRequest::check_output(const at::Tensor& tensor, const char* argument) const {
  check_input(tensor, argument);
  require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "`", argument,
          "` cannot be written: several of its elements share the same memory, as after expand(); ",
          "pass a clone()");
}

void CollectiveRequest::check_same_dtype(const at::Tensor& tensor, const char* argument,
                                         const at::Tensor& other,
                                         const char* other_argument) const {
  require(tensor.scalar_type() == other.scalar_type(), "`", argument, "` has dtype ",
          tensor.scalar_type(), ", but `", other_argument, "` has dtype ", other.scalar_type(),
          ": Tensors are not equal in data type");
}

void CollectiveRequest::check_same_device(const at::Tensor& tensor, const at::Tensor& other) const {
  require(tensor.device() == other.device(), "the tensors of a call must be on one device, but ",
          "they are on ", other.device(), " and ", tensor.device());
}

void CollectiveRequest::check_rank(int64_t rank, const char* argument) const {
  require(rank >= 0 && rank < group_->size, "`", argument, "` ", rank,
          " is not a rank of this group, which has ranks 0 to ", group_->size - 1);
}

int CollectiveRequest::checked_root(int64_t root) const {
  check_rank(root, "root");
  return static_cast<int>(root);
}

void CollectiveRequest::check_list_length(const Tensors& list, const char* argument) const {
  require(list.size() == static_cast<std::size_t>(group_->size), "`", argument,
          "` must hold one tensor per rank, ", group_->size, " in all, but it holds ", list.size());
}

void CollectiveRequest::check_input_list(const Tensors& list, const char* argument,
                                         const at::Tensor& other,
                                         const char* other_argument) const {
  check_list_length(list, argument);
  for (const at::Tensor& tensor : list) {
    check_input(tensor, argument);
    check_same_dtype(tensor, argument, other, other_argument);
  }
}

void CollectiveRequest::check_output_list(const Tensors& list, const char* argument,
                                          const at::Tensor& other,
                                          const char* other_argument) const {
  check_list_length(list, argument);
  for (const at::Tensor& tensor : list) {
    check_output(tensor, argument);
    check_same_dtype(tensor, argument, other, other_argument);
  }
}

void CollectiveRequest::check_same_length(const Tensors& outputs, const Tensors& inputs) const {
  require(outputs.size() == inputs.size(), "there are ", outputs.size(), " outputs for ",
          inputs.size(), " inputs");
}

tccl::Reduction CollectiveRequest::reduction(const c10d::ReduceOp& op,
                                             const at::Tensor& tensor) const {
  const auto known = reduce_op_of(op.op_);
  require(known.has_value(), "`op` is not a supported reduction (", int{op.op_}, ")");
  require(tccl::supports(tccl_dtype(tensor), *known), "`op` ", tccl::name_of(*known),
          " is not defined for dtype ", tensor.scalar_type());
  if (*known != tccl::ReduceOp::premul_sum) return {*known};
  const auto* supplement = dynamic_cast<PreMulSumSupplement*>(op.supplement_.get());
  require(supplement != nullptr, "`op` is PREMUL_SUM, but it has no factor");
  const at::Tensor& factor = supplement->tensor_factor;
  return {*known, factor.defined() ? factor.item<double>() : supplement->double_factor};
}

const void* CollectiveRequest::input_data(const at::Tensor& tensor) {
  return host_data(is_plain(tensor) ? tensor : contiguous_copy(tensor));
}

void* CollectiveRequest::host_data(const at::Tensor& contiguous) {
  if (!used_.empty()) check_same_device(contiguous, used_.front());
  used_.push_back(contiguous);
  // Also for inputs: the operations declare which memory they only read.
  if (contiguous.is_cpu()) return const_cast<void*>(contiguous.const_data_ptr());
  if (!staging_) staging_ = std::make_unique<Staging>(contiguous.device());
  return staging_->add_buffer(contiguous);
}

const void* CollectiveRequest::unaliased_input_data(const at::Tensor& tensor,
                                                    const void* in_place_address) {
  const auto overlaps_tensor = [&](const at::Tensor& output) { return overlap(tensor, output); };
  const bool needs_copy = is_plain(tensor) && tensor.const_data_ptr() != in_place_address &&
                          std::ranges::any_of(written_, overlaps_tensor);
  return input_data(needs_copy ? contiguous_copy(tensor) : tensor);
}

void* CollectiveRequest::output_data(const at::Tensor& tensor, Contents contents) {
  if (is_plain(tensor)) return written_data(tensor);
  return copied_output_data(
      tensor, contents == keep_contents ? contiguous_copy(tensor) : contiguous_empty(tensor));
}

// The operations write `copy`; copy_results() copies it to the tensor.
void* CollectiveRequest::copied_output_data(const at::Tensor& tensor, const at::Tensor& copy) {
  results_.push_back({copy, tensor});
  void* data = written_data(copy);
  if (staging_) staging_->keep_alive(tensor);
  return data;
}

void* CollectiveRequest::written_data(const at::Tensor& target) {
  written_.push_back(target);
  if (target.is_cpu()) target.mutable_data_ptr();  // materializes a copy-on-write tensor
  return host_data(target);
}

std::span<const tccl::Block> CollectiveRequest::output_blocks(const Tensors& list) {
  // Each rank writes the blocks in another order. If a tensor is in the list twice, all results are
  // copied, in the order of the list: the later entry remains, on every rank.
  const bool copies = any_overlap(list);
  std::vector<tccl::Block> blocks;
  for (const at::Tensor& tensor : list)
    blocks.push_back(
        copies ? tccl::Block{copied_output_data(tensor, contiguous_empty(tensor)), count_of(tensor)}
               : output_block(tensor));
  return keep_alive(std::move(blocks));
}

std::span<const tccl::ConstBlock> CollectiveRequest::input_blocks(const Tensors& list) {
  std::vector<tccl::ConstBlock> blocks;
  for (const at::Tensor& tensor : list) blocks.push_back(input_block(tensor));
  return keep_alive(std::move(blocks));
}

std::span<const tccl::Block> CollectiveRequest::keep_alive(std::vector<tccl::Block> blocks) {
  return blocks_.emplace_back(std::move(blocks));
}

std::span<const tccl::ConstBlock> CollectiveRequest::keep_alive(
    std::vector<tccl::ConstBlock> blocks) {
  return const_blocks_.emplace_back(std::move(blocks));
}

void CollectiveRequest::add_tensors(at::ArrayRef<at::Tensor> inputs,
                                    at::ArrayRef<at::Tensor> outputs) {
  inputs_.append(inputs.begin(), inputs.end());
  outputs_.append(outputs.begin(), outputs.end());
}

void CollectiveRequest::set_body(std::uint32_t operations, Body body,
                                 std::function<void()> finish) {
  body_operations_ = operations;
  body_ = std::move(body);
  finish_ = std::move(finish);
}

tccl::OperationList CollectiveRequest::operation_list(
    const std::shared_ptr<const CollectiveRequest>& request) {
  const char* name = request->method().name;
  if (request->body_) return {name, request->body_operations_, request->body_};
  if (request->staging_)
    return {name, request->staging_->operation_count(),
            [request](const tccl::OperationList::Run& run) {
              request->staging_->run_all(run, [&] { request->copy_results(); });
            }};
  const auto operations = static_cast<std::uint32_t>(request->operations_.size());
  return {name, operations, [request](const tccl::OperationList::Run& run) {
            for (const tccl::Operation& operation : request->operations_) run(operation);
          }};
}

void CollectiveRequest::prepare_staging(std::size_t chunk_bytes, std::chrono::milliseconds timeout,
                                        Staging::WhileWaiting while_waiting) {
  staging_->prepare({operations_.data(), operations_.size()},
                    {.self = {group_->rank, group_->size},
                     .chunk_bytes = chunk_bytes,
                     .timeout = timeout,
                     .while_waiting = std::move(while_waiting)});
  if (operations_.front().op == tccl::Op::send) staging_->copy_inputs_to_host();
}

bool CollectiveRequest::try_write_results() const {
  if (is_staged_receive()) return staging_->try_copy_outputs_to_device([this] { copy_results(); });
  if (finish_) finish_();
  if (!staging_) copy_results();
  return true;
}

void CollectiveRequest::copy_results() const {
  for (const Copy& copy : results_) copy_below_autograd(copy.to, copy.from);
}

}  // namespace torch_ccl
