#include "call.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace torch_ccl {
namespace {

// Below autograd, because the collectives themselves are: they read and write a leaf that requires
// grad, and an inference tensor outside of inference mode, like any other.
void copy_below_autograd(const at::Tensor& to, const at::Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  to.copy_(from);
}

// Whether the elements lie in memory one after the other, with the values that the tensor shows.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

at::Tensor contiguous_room(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor contiguous_copy(const at::Tensor& tensor) {
  at::Tensor copy = contiguous_room(tensor);
  copy_below_autograd(copy, tensor);
  return copy;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {  // both contiguous
  const auto* a_data = static_cast<const char*>(a.const_data_ptr());
  const auto* b_data = static_cast<const char*>(b.const_data_ptr());
  return std::less<>()(a_data, b_data + b.nbytes()) && std::less<>()(b_data, a_data + a.nbytes());
}

}  // namespace

void refuse(const Method& method, const GroupFacts& group, const std::string& problem) {
  C10_THROW_ERROR(ValueError, c10::str("ccl: ", method.name, " on rank ", group.rank, " of group ",
                                       group.name, ": ", problem));
}

void Call::check_input(const at::Tensor& tensor, const char* argument) const {
  require(tensor.defined(), "`", argument, "` is an undefined tensor");
  require(tensor.layout() == at::kStrided, "`", argument, "` must be dense, but its layout is ",
          tensor.layout());
  require(tensor.is_cpu() || at::accelerator::isAccelerator(tensor.device().type()), "`", argument,
          "` must be on the CPU or an accelerator, but it is on ", tensor.device());
  require(dtype_of(tensor.scalar_type()).has_value(), "`", argument, "` has the unsupported dtype ",
          tensor.scalar_type());
}

void Call::check_output(const at::Tensor& tensor, const char* argument) const {
  check_input(tensor, argument);
  require(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "`", argument,
          "` cannot be written: several of its elements share one place in memory, as after ",
          "expand(); pass a clone()");
}

void Call::check_same_dtype(const at::Tensor& tensor, const char* argument, const at::Tensor& other,
                            const char* other_argument) const {
  require(tensor.scalar_type() == other.scalar_type(), "`", argument, "` has dtype ",
          tensor.scalar_type(), ", but `", other_argument, "` has dtype ", other.scalar_type());
}

void Call::check_same_device(const at::Tensor& tensor, const at::Tensor& other) const {
  require(tensor.device() == other.device(), "the tensors of a call must be on one device, but ",
          "they are on ", other.device(), " and ", tensor.device());
}

void Call::check_rank(int64_t rank, const char* argument) const {
  require(rank >= 0 && rank < group_->size, "unexpected rank ", rank, " as `", argument,
          "`; the group has ranks 0 to ", group_->size - 1);
}

void Call::check_list_length(const Tensors& list, const char* argument) const {
  require(list.size() == static_cast<std::size_t>(group_->size), "`", argument,
          "` must hold one tensor per rank, ", group_->size, " in all, but it holds ", list.size());
}

void Call::check_same_length(const Tensors& outputs, const Tensors& inputs) const {
  require(outputs.size() == inputs.size(), "there are ", outputs.size(), " outputs for ",
          inputs.size(), " inputs");
}

tccl::Reduction Call::reduction(const c10d::ReduceOp& op, const at::Tensor& tensor) const {
  const auto known = reduce_op_of(op.op_);
  require(known.has_value(), "`op` is not a reduction (", int{op.op_}, ")");
  require(tccl::supports(tccl_dtype(tensor), *known), "`op` ", tccl::name_of(*known),
          " means nothing for dtype ", tensor.scalar_type());
  if (*known != tccl::ReduceOp::premul_sum) return {*known};
  const auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
  require(supplement != nullptr, "`op` is PREMUL_SUM, but it carries no factor");
  const at::Tensor& factor = supplement->tensor_factor;
  return {*known, factor.defined() ? factor.item<double>() : supplement->double_factor};
}

const void* Call::readable(const at::Tensor& tensor) {
  return data_of(is_plain(tensor) ? tensor : contiguous_copy(tensor));
}

void* Call::data_of(const at::Tensor& tensor) {
  if (!memory_.empty()) check_same_device(tensor, memory_.front());
  memory_.push_back(tensor);
  // A const tensor's memory, too: the operations know which of it they only read.
  if (tensor.is_cpu()) return const_cast<void*>(tensor.const_data_ptr());
  if (!staging_) staging_ = std::make_unique<Staging>(tensor.device());
  return staging_->room_for(tensor);
}

const void* Call::readable_apart(const at::Tensor& tensor, const void* allowed) {
  const auto overlaps_tensor = [&](const at::Tensor& out) { return overlap(tensor, out); };
  const bool copies = is_plain(tensor) && tensor.const_data_ptr() != allowed &&
                      std::ranges::any_of(written_, overlaps_tensor);
  return readable(copies ? contiguous_copy(tensor) : tensor);
}

void* Call::writable(const at::Tensor& tensor, Contents contents) {
  at::Tensor room = tensor;
  if (!is_plain(tensor)) {
    room = contents == with_contents ? contiguous_copy(tensor) : contiguous_room(tensor);
    results_.push_back({room, tensor});
  }
  written_.push_back(room);
  if (room.is_cpu()) room.mutable_data_ptr();  // it may be a lazy copy of another
  void* data = data_of(room);
  if (staging_ && !room.is_same(tensor)) staging_->keep(tensor);
  return data;
}

std::span<const tccl::Block> Call::keep(std::vector<tccl::Block> blocks) {
  return blocks_.emplace_back(std::move(blocks));
}

std::span<const tccl::ConstBlock> Call::keep(std::vector<tccl::ConstBlock> blocks) {
  return const_blocks_.emplace_back(std::move(blocks));
}

void Call::set_tensors(at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs) {
  inputs_.append(inputs.begin(), inputs.end());
  outputs_.append(outputs.begin(), outputs.end());
}

void Call::set_body(std::uint32_t operations, Body body, std::function<void()> finish) {
  body_operations_ = operations;
  body_ = std::move(body);
  finish_ = std::move(finish);
}

tccl::OperationSequence Call::sequence(const std::shared_ptr<const Call>& call) {
  if (call->body_) return {call->method().name, call->body_operations_, call->body_};
  if (call->staging_)
    return {call->method().name, call->staging_->operations(),
            [call](const tccl::OperationSequence::Run& run) {
              call->staging_->run(run, [&] { call->copy_results(); });
            }};
  const auto operations = static_cast<std::uint32_t>(call->operations_.size());
  return {call->method().name, operations, [call](const tccl::OperationSequence::Run& run) {
            for (const tccl::Operation& operation : call->operations_) run(operation);
          }};
}

void Call::prepare_staging(std::size_t piece_bytes, std::chrono::milliseconds timeout,
                           Staging::Stop stop_if_asked) {
  staging_->prepare({operations_.data(), operations_.size()},
                    {.place = {group_->rank, group_->size},
                     .piece_bytes = piece_bytes,
                     .timeout = timeout,
                     .stop_if_asked = std::move(stop_if_asked)});
  if (operations_.front().op == tccl::Op::send) staging_->bring_inputs();
}

bool Call::try_finish() const {
  if (may_finish_late()) return staging_->try_return_outputs([this] { copy_results(); });
  if (finish_) finish_();
  if (!staging_) copy_results();
  return true;
}

void Call::copy_results() const {
  for (const Copy& copy : results_) copy_below_autograd(copy.to, copy.from);
}

}  // namespace torch_ccl
