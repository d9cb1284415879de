#include "process_group.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "context.h"

namespace torch_ccl {
namespace {

/// torch.distributed.SHRINK_ABORT
constexpr int kShrinkAbort = 1;
/// At the end of a group's name, as in torch's group_desc.
constexpr std::string_view kShrunk = ":shrunk";

// Without the global ranks, which differ in the new group.
c10::intrusive_ptr<CpuBackend::Options> copy_options(const BackendBase::OptionsPtr& given,
                                                     std::chrono::milliseconds timeout) {
  auto options =
      c10::make_intrusive<CpuBackend::Options>(timeout, given ? given->backend : kBackendName);
  if (!given) return options;
  options->timeout = given->timeout;
  options->group_name = group_name_of(*given);
  copy_group_description(*given, *options);
  return options;
}

}  // namespace

// ---- the device backend

void ProcessGroupCCL::set_device_backend(at::DeviceType device,
                                         c10::intrusive_ptr<c10d::Backend> backend) {
  device_type_ = device;
  device_backend_ = std::move(backend);
}

void ProcessGroupCCL::setTimeout(std::chrono::milliseconds timeout) {
  if (device_backend_) set_timeout(*device_backend_, timeout);
  CpuBackend::setTimeout(timeout);
}

void ProcessGroupCCL::shutdown() {
  if (device_backend_) device_backend_->shutdown();
  CpuBackend::shutdown();
}

void ProcessGroupCCL::abort() {
  if (device_backend_) device_backend_->abort();
  CpuBackend::abort();
}

// ---- new groups

ProcessGroupCCL::BackendPtr ProcessGroupCCL::split(const StorePtr& store,
                                                   const std::vector<int>& ranks,
                                                   const OptionsPtr& options) {
  const auto own = std::ranges::find(ranks, getRank());
  if (own == ranks.end()) return nullptr;
  auto split_options = copy_options(options, effective_timeout(kNoTimeout));
  // Unknown if this is a group of some ranks whose backend replaces another one.
  const std::vector<uint64_t>& parent_ranks = this->options().global_ranks_in_group;
  for (const int rank : ranks) {
    const auto index = static_cast<std::size_t>(rank);
    if (!parent_ranks.empty())
      split_options->global_ranks_in_group.push_back(parent_ranks.at(index));
    else if (this->options().is_world)
      split_options->global_ranks_in_group.push_back(index);
  }
  std::string name = split_options->group_name;
  return c10::make_intrusive<ProcessGroupCCL>(store, static_cast<int>(own - ranks.begin()),
                                              static_cast<int>(ranks.size()),
                                              std::move(split_options), std::move(name));
}

// The global ranks of the new group stay empty: those of the other parent's ranks are unknown.
ProcessGroupCCL::BackendPtr ProcessGroupCCL::merge(const StorePtr& store, const OptionsPtr& options,
                                                   const int& rank, const int& size) {
  auto merged_options = copy_options(options, effective_timeout(kNoTimeout));
  std::string name = merged_options->group_name;
  return c10::make_intrusive<ProcessGroupCCL>(store, rank, size, std::move(merged_options),
                                              std::move(name));
}

// The global ranks: after shrinking the group of all ranks, torch's are those of the new group; of
// another group they stay the same.
ProcessGroupCCL::BackendPtr ProcessGroupCCL::shrink(const std::vector<int64_t>& ranks_to_exclude,
                                                    int shrink_flags,
                                                    const OptionsPtr& given_options) {
  const std::vector<int> excluded(ranks_to_exclude.begin(), ranks_to_exclude.end());
  auto shrunk_options = copy_options(given_options ? given_options : getBackendOptions(),
                                     effective_timeout(kNoTimeout));
  shrunk_options->is_world = options().is_world;
  const std::vector<uint64_t>& global_ranks = options().global_ranks_in_group;
  for (std::size_t rank = 0; rank < global_ranks.size(); ++rank)
    if (std::ranges::find(excluded, static_cast<int>(rank)) == excluded.end())
      shrunk_options->global_ranks_in_group.push_back(global_ranks[rank]);
  if ((shrink_flags & kShrinkAbort) != 0)
    communicator().abort(c10::str("shrink_group() excludes ", excluded));
  std::string shrunk_name = name();
  if (!shrunk_name.ends_with(kShrunk)) shrunk_name += kShrunk;
  auto shrunk = shrink_communicator(communicator(), excluded,
                                    {.name = shrunk_name, .timeout = shrunk_options->timeout},
                                    shrunk_options->is_world);
  return c10::make_intrusive<ProcessGroupCCL>(std::move(shrunk), std::move(shrunk_options),
                                              std::move(shrunk_name));
}

// ---- routing

bool ProcessGroupCCL::uses_device_backend(const at::Tensor& tensor) const {
  return device_backend_ && tensor.defined() && tensor.device().type() == device_type_;
}

bool ProcessGroupCCL::uses_device_backend(const Tensors& tensors) const {
  return !tensors.empty() && uses_device_backend(tensors.front());
}

template <class... Parameters, class... Arguments>
ProcessGroupCCL::WorkPtr ProcessGroupCCL::run_on_device_backend(
    WorkPtr (c10d::Backend::*method)(Parameters...), Arguments&&... arguments) {
  try {
    WorkPtr work = (device_backend_.get()->*method)(std::forward<Arguments>(arguments)...);
    if (coalescing().is_open()) coalescing().add(work);
    return work;
  } catch (...) {
    coalescing().discard();
    throw;
  }
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce(Tensors& tensors,
                                                    const c10d::AllreduceOptions& options) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::allreduce, tensors, options)
             : CpuBackend::allreduce(tensors, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce_sparse(Tensors& tensors,
                                                           const c10d::AllreduceOptions& options) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::allreduce_sparse, tensors, options)
             : CpuBackend::allreduce_sparse(tensors, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce_compressed(
    Tensors& tensors, const c10d::AllreduceOptions& options, tccl::WireFormat format) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::allreduce, tensors, options)
             : CpuBackend::allreduce_compressed(tensors, options, format);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::allreduce_coalesced, tensors, options)
             : CpuBackend::allreduce_coalesced(tensors, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::broadcast(Tensors& tensors,
                                                    const c10d::BroadcastOptions& options) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::broadcast, tensors, options)
             : CpuBackend::broadcast(tensors, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::reduce(Tensors& tensors,
                                                 const c10d::ReduceOptions& options) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::reduce, tensors, options)
             : CpuBackend::reduce(tensors, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  return uses_device_backend(inputs)
             ? run_on_device_backend(&c10d::Backend::allgather, outputs, inputs, options)
             : CpuBackend::allgather(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions& options) {
  return uses_device_backend(input)
             ? run_on_device_backend(&c10d::Backend::_allgather_base, output, input, options)
             : CpuBackend::_allgather_base(output, input, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return uses_device_backend(inputs)
             ? run_on_device_backend(&c10d::Backend::allgather_coalesced, outputs, inputs, options)
             : CpuBackend::allgather_coalesced(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return uses_device_backend(inputs)
             ? run_on_device_backend(&c10d::Backend::allgather_into_tensor_coalesced, outputs,
                                     inputs, options)
             : CpuBackend::allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& options) {
  return uses_device_backend(inputs)
             ? run_on_device_backend(&c10d::Backend::gather, outputs, inputs, options)
             : CpuBackend::gather(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& options) {
  return uses_device_backend(outputs)
             ? run_on_device_backend(&c10d::Backend::scatter, outputs, inputs, options)
             : CpuBackend::scatter(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  return uses_device_backend(outputs)
             ? run_on_device_backend(&c10d::Backend::reduce_scatter, outputs, inputs, options)
             : CpuBackend::reduce_scatter(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return uses_device_backend(output)
             ? run_on_device_backend(&c10d::Backend::_reduce_scatter_base, output, input, options)
             : CpuBackend::_reduce_scatter_base(output, input, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return uses_device_backend(outputs)
             ? run_on_device_backend(&c10d::Backend::reduce_scatter_tensor_coalesced, outputs,
                                     inputs, options)
             : CpuBackend::reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<int64_t>& output_splits,
                                                        std::vector<int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& options) {
  return uses_device_backend(input)
             ? run_on_device_backend(&c10d::Backend::alltoall_base, output, input, output_splits,
                                     input_splits, options)
             : CpuBackend::alltoall_base(output, input, output_splits, input_splits, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& options) {
  return uses_device_backend(inputs)
             ? run_on_device_backend(&c10d::Backend::alltoall, outputs, inputs, options)
             : CpuBackend::alltoall(outputs, inputs, options);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::send(Tensors& tensors, int destination, int tag) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::send, tensors, destination, tag)
             : CpuBackend::send(tensors, destination, tag);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::recv(Tensors& tensors, int source, int tag) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::recv, tensors, source, tag)
             : CpuBackend::recv(tensors, source, tag);
}

ProcessGroupCCL::WorkPtr ProcessGroupCCL::recvAnysource(Tensors& tensors, int tag) {
  return uses_device_backend(tensors)
             ? run_on_device_backend(&c10d::Backend::recvAnysource, tensors, tag)
             : CpuBackend::recvAnysource(tensors, tag);
}

}  // namespace torch_ccl
