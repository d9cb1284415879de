// The c10d backend "ccl": translates the calls of torch.distributed into operations of a
// tccl::Communicator.
//
// A synchronous call runs on the calling thread and returns completed Work; an asynchronous one,
// and every call in a batch, is started, and its Work keeps the tensors alive. Only numbers of
// elements matter, never shapes. Thread safety: every method may be called from any thread; none
// needs Python's GIL, though a user's hook or tensor may take it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "call.h"
#include "ledger.h"
#include "memory.h"
#include "tccl/communicator.h"

namespace torch_ccl {

inline constexpr const char* kBackendName = "ccl";

class ProcessGroupCCL final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;

  /// `backend` is the name that the program asked for: another one where this backend takes the
  /// place of torch's own (docs/replacing.md).
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout,
                     std::string backend = kBackendName)
        : c10d::Backend::Options(std::move(backend), timeout) {}

    // DDP's logger reads c10d::ProcessGroupGloo's options_->threads from whatever serves "gloo", by
    // a static_cast. So these, and options_ behind a shared_ptr, lie where they do in that class.
    std::vector<std::shared_ptr<void>> gloo_devices;
    int gloo_threads = 2;
  };

  /// Meets the other ranks through `store`, whose keys belong to this group alone. `name` is for
  /// messages.
  ProcessGroupCCL(const StorePtr& store, int rank, int size, c10::intrusive_ptr<Options> options,
                  std::string name);
  ~ProcessGroupCCL() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  /// How many collectives and messages this process has started, in all groups.
  static std::uint64_t operation_count() noexcept;
  /// For calls from now on that name no timeout of their own.
  void setTimeout(std::chrono::milliseconds timeout) override;

  // ---- collectives

  /// Sparse tensors too.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// As allreduce of a dense tensor; float32 travels between hosts in this format.
  WorkPtr allreduce_packed(Tensors& tensors, const c10d::AllreduceOptions& options,
                           tccl::WireFormat format);
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  /// The outputs may differ in size, if every rank passes the same sizes.
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  /// outputs[rank][i] receives that rank's inputs[i].
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  /// The inputs may differ in size, if every rank passes the same sizes.
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  /// The splits count rows; without them the tensors are cut into equal parts.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  /// Throws if a rank has not come in time, and names it on rank 0. The group stays usable.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // ---- point to point: always asynchronous, independent of collectives

  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // ---- batches of calls that torch sees as one Work

  /// Batches work, but batch_isend_irecv must not use them: if a call in one throws, torch 2.13
  /// keeps its own note that a batch is open, and from then on all_reduce on that group does
  /// nothing.
  bool supportsCoalescing() const override { return false; }
  void startCoalescing() override { facts_.batches.begin(); }
  WorkPtr endCoalescing() override;

  // ---- memory that collectives need not copy (DDP's buckets, FSDP2's buffers)

  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return empty_shared({size}, options);
  }

  // ---- devices that have a backend of their own

  /// Tensors on such a device go to this backend instead of through host memory. To be called
  /// before the first of them comes.
  void set_native(at::DeviceType device, c10::intrusive_ptr<c10d::Backend> backend);

  // ---- other groups

  bool supportsSplitting() const override { return true; }
  /// Collective over `ranks` alone; null on all other ranks.
  c10::intrusive_ptr<c10d::Backend> split(
      const StorePtr& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  /// A new group of ranks that need have nothing in common but the store.
  c10::intrusive_ptr<c10d::Backend> merge(const StorePtr& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;

  // ---- what became of it

  /// Ranks agree on it from the start: it counts the collectives that were issued.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return communicator_->next_sequence() - 1; }
  void registerOnCompletionHook(Ledger::Hook&& hook) override;
  void waitForPendingWorks() override { ledger_->wait_for_all(); }
  /// Works know their duration always.
  void enableCollectivesTiming() override {}
  c10d::ErrorType getError() override;
  /// Waits for what was started, then leaves the group.
  void shutdown() override;
  void abort() override;

 private:
  WorkPtr launch(Call call, std::chrono::milliseconds timeout, bool asynchronous);
  template <class CallOptions>
  WorkPtr launch(Call call, const CallOptions& options) {
    return launch(std::move(call), options.timeout, options.asyncOp);
  }
  WorkPtr launch_point_to_point(Call call);
  void prepare_staging(Call& call, std::chrono::milliseconds timeout) const;
  [[nodiscard]] c10d::Backend* native_for(const at::Tensor& tensor) const;
  [[nodiscard]] c10d::Backend* native_for(const Tensors& tensors) const;
  template <class NativeCall>
  WorkPtr in_batch(const NativeCall& call);
  void add_allreduce(Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op,
                     tccl::WireFormat format = tccl::WireFormat::by_setting);
  void add_allgather(Call& call, const at::Tensor& output, const at::Tensor& input);
  void add_allgatherv(Call& call, const Tensors& outputs, const at::Tensor& input);
  void add_reduce_scatter(Call& call, const at::Tensor& output, const at::Tensor& input,
                          const c10d::ReduceOp& op);
  WorkPtr receive(const Method& method, Tensors& tensors, int source, int tag);
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const;

  const std::shared_ptr<void> gloo_store_;  // empty, and first: see Options
  const c10::intrusive_ptr<Options> options_;
  GroupFacts facts_;
  const std::shared_ptr<tccl::Communicator> communicator_;
  const std::size_t staging_bytes_;  // of a piece
  c10::intrusive_ptr<c10d::Backend> native_;
  at::DeviceType native_device_ = at::kCPU;  // of native_, if there is one
  const std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  std::atomic<std::chrono::milliseconds> timeout_;    // relaxed: guards nothing but itself
  std::atomic<std::uint32_t> monitored_barriers_{0};  // the same
};

}  // namespace torch_ccl
