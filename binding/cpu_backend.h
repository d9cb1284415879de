// The collectives and messages of the backend, on CPU memory: translates the calls of
// torch.distributed to operations of a tccl::Communicator. Tensors of an accelerator are staged.
//
// A synchronous call runs on the calling thread if the group's queue is idle, and returns a
// completed Work. An asynchronous call, and every call in a coalescing block, is started, and its
// Work keeps the tensors alive. Only element counts matter, never shapes. Files: cpu_backend.cc
// (life cycle, how a request is run, services), cpu_backend_reductions.cc, cpu_backend_copies.cc,
// cpu_backend_point_to_point.cc.
//
// Thread safety: every method may be called from any thread. None needs Python's GIL, though a
// user's hook or tensor may take it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "collective_request.h"
#include "memory.h"
#include "pending_work_count.h"
#include "tccl/communicator.h"
#include "torch_version.h"

namespace torch_ccl {

inline constexpr const char* kBackendName = "ccl";

class CpuBackend : public BackendBase {
 public:
  /// `backend` is the name that the program asked for, such as "gloo" under CCL_REPLACE=gloo.
  struct Options final : BackendOptions {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout,
                     std::string backend = kBackendName)
        : BackendOptions(std::move(backend), timeout) {}
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
      return c10::make_intrusive<Options>(*this);
    }

    // DDP's logger reads options_->threads from any backend named "gloo", after a static_cast to
    // c10d::ProcessGroupGloo. So these members, and gloo_store_ and options_ below, have the same
    // offsets as in that class.
    std::vector<std::shared_ptr<void>> gloo_devices;
    int gloo_threads = 2;
    /// The group of all ranks, which torch created: later groups find lost ranks through it.
    bool is_world = false;
  };

  /// Collective over all ranks: rendezvous through `store`, whose keys belong to this group alone.
  /// `name` appears in messages.
  CpuBackend(const StorePtr& store, int rank, int size, const c10::intrusive_ptr<Options>& options,
             const std::string& name);
  /// The backend of a group that exists.
  CpuBackend(std::shared_ptr<tccl::Communicator> communicator, c10::intrusive_ptr<Options> options,
             std::string name);
  ~CpuBackend() override;

  const std::string getBackendName() const override { return kBackendName; }
  OptionsPtr getBackendOptions() override { return options_; }
  /// The number of collectives and messages that this process has started, in all groups.
  static std::uint64_t operation_count() noexcept;
  /// Applies to later calls that pass no timeout.
  void setTimeout(std::chrono::milliseconds timeout) override;

  // ---- collectives

  /// Sparse tensors too.
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  /// As allreduce of a dense tensor; float32 is sent between hosts in this format.
  virtual WorkPtr allreduce_compressed(Tensors& tensors, const c10d::AllreduceOptions& options,
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
  WorkPtr gather_into(at::Tensor& output, at::Tensor& input,
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
  /// The splits count rows; without them the tensors are split into equal blocks.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  /// Throws if a rank does not arrive in time; rank 0's error names it. The group stays usable.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // ---- point to point: always asynchronous, independent of collectives

  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // ---- fast calls (fast_calls.h)

  /// Runs a synchronous collective without a Work, if the group's queue is idle and nothing observes
  /// the call: no completion hook, no coalescing block of this thread. Otherwise, and if the operation
  /// is refused, it has done nothing and returns false. The caller keeps the memory alive.
  bool try_run_plain(const tccl::Operation& operation);
  /// The same for a send or recv of this tensor.
  bool try_run_plain_message(const tccl::Operation& operation, const at::Tensor& tensor);

  // ---- coalescing: calls whose Works torch sees as one

  /// False although coalescing works, because batch_isend_irecv must not use it: if a call in a
  /// block throws, torch 2.13 still considers the block open, and every later all_reduce on that
  /// group does nothing.
  bool supportsCoalescing() const override { return false; }
  void startCoalescing() override { group_.coalescing.begin(); }
  WorkPtr endCoalescing() override;

  // ---- shared memory, which collectives need not copy (DDP's buckets, FSDP2's buffers)

  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return empty_shared({size}, options);
  }

  // ---- completion, errors, shutdown

  /// Nothing to do: the sequence number counts the collectives issued, so ranks that issue the same
  /// collectives agree on it.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return communicator_->next_sequence() - 1; }
  void registerOnCompletionHook(PendingWorkCount::Hook&& hook) override;
  void waitForPendingWorks() override;
  /// Nothing to do: every Work records its duration.
  void enableCollectivesTiming() override {}
  c10d::ErrorType getError() override;
  /// Waits for started operations, then leaves the group.
  void shutdown() override;
  void abort() override;

 protected:
  [[nodiscard]] const Options& options() const noexcept { return *options_; }
  [[nodiscard]] CoalescingState& coalescing() noexcept { return group_.coalescing; }
  [[nodiscard]] const std::string& name() const noexcept { return group_.name; }
  [[nodiscard]] tccl::Communicator& communicator() noexcept { return *communicator_; }
  /// `timeout`, or the group's if that is zero or negative.
  [[nodiscard]] std::chrono::milliseconds effective_timeout(
      std::chrono::milliseconds timeout) const;

 private:
  WorkPtr run_request(CollectiveRequest request, std::chrono::milliseconds timeout,
                      bool asynchronous);
  template <class CallOptions>
  WorkPtr run_request(CollectiveRequest request, const CallOptions& options) {
    return run_request(std::move(request), options.timeout, options.asyncOp);
  }
  WorkPtr run_point_to_point(CollectiveRequest request);
  template <class Run>
  bool try_run_unobserved(const Run& run);
  void close();
  WorkPtr start_recv(const Method& method, Tensors& tensors, int source, int tag);
  void prepare_staging(CollectiveRequest& request, std::chrono::milliseconds timeout) const;

  const std::shared_ptr<void> gloo_store_;  // always empty; must be the first member: see Options
  const c10::intrusive_ptr<Options> options_;
  GroupInfo group_;
  const std::shared_ptr<tccl::Communicator> communicator_;
  const std::size_t staging_bytes_;  // of a chunk
  const std::shared_ptr<PendingWorkCount> pending_work_ = std::make_shared<PendingWorkCount>();
  std::atomic<std::chrono::milliseconds> timeout_;    // relaxed: no other data depends on it
  std::atomic<std::uint32_t> monitored_barriers_{0};  // relaxed: only counts
};

}  // namespace torch_ccl
