// The c10d backend "ccl" that torch sees: a subclass of CpuBackend that routes by device.
//
// Tensors of a device that has a backend of its own (XPUs have xccl) are passed to that device
// backend; all others are served by CpuBackend. A call is routed by its first tensor. Works of the
// device backend join the calling thread's coalescing block like any other.
//
// Thread safety: as CpuBackend; set_device_backend() before the first tensor of that device.
#pragma once

#include "cpu_backend.h"

namespace torch_ccl {

class ProcessGroupCCL final : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;

  /// Routes the tensors of this device type to `backend`. shutdown(), abort() and setTimeout()
  /// apply to it, too.
  void set_device_backend(at::DeviceType device, c10::intrusive_ptr<c10d::Backend> backend);

  void setTimeout(std::chrono::milliseconds timeout) override;
  void shutdown() override;
  void abort() override;

  // ---- new groups

  bool supportsSplitting() const override { return true; }
  /// Collective over `ranks`; returns null on all other ranks.
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const OptionsPtr& options) override;
  /// A new group. Its ranks need to share only the store, not a group.
  BackendPtr merge(const StorePtr& store, const OptionsPtr& options, const int& rank,
                   const int& size) override;

  bool supportsShrinking() const override { return true; }
  /// Collective over the ranks that are not excluded. With SHRINK_ABORT this group fails first on
  /// all ranks, which ends operations in flight; otherwise it stays as it is.
  BackendPtr shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                    const OptionsPtr& options) override;

  // ---- routed by the device of the tensors

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// A device backend ignores the format.
  WorkPtr allreduce_compressed(Tensors& tensors, const c10d::AllreduceOptions& options,
                               tccl::WireFormat format) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  [[nodiscard]] bool uses_device_backend(const at::Tensor& tensor) const;
  [[nodiscard]] bool uses_device_backend(const Tensors& tensors) const;
  /// Calls the device backend's method, and adds its Work to an open coalescing block.
  template <class... Parameters, class... Arguments>
  WorkPtr run_on_device_backend(WorkPtr (c10d::Backend::*method)(Parameters...),
                                Arguments&&... arguments);

  c10::intrusive_ptr<c10d::Backend> device_backend_;
  at::DeviceType device_type_ = at::kCPU;  // of device_backend_, if there is one
};

}  // namespace torch_ccl
