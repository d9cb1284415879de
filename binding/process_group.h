// The c10d backend "ccl": translates tensors and options of torch.distributed into operations of a
// tccl::Communicator.
//
// A synchronous call runs on the calling thread and returns completed Work; an asynchronous one
// is started, and its Work keeps the tensors alive. Tensors that are not contiguous are worked on
// in a contiguous copy, which is copied back before the Work completes. Thread safety: every method
// may be called from any thread; none needs Python's GIL.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tccl/communicator.h"

namespace torch_ccl {

inline constexpr const char* kBackendName = "ccl";

struct Call;

class ProcessGroupCCL final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options(kBackendName, timeout) {}
  };

  ProcessGroupCCL(std::shared_ptr<tccl::Communicator> communicator,
                  c10::intrusive_ptr<Options> options);
  ~ProcessGroupCCL() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  /// For calls from now on that name no timeout of their own.
  void setTimeout(std::chrono::milliseconds timeout) override;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  /// The outputs may differ in size, if every rank passes the same sizes.
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  /// Ranks agree on it from the start: it counts the collectives that were issued.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return communicator_->next_sequence() - 1; }

  /// Waits for what was started, then leaves the group.
  void shutdown() override { communicator_->close(); }
  void abort() override;

 private:
  template <class CallOptions>
  c10::intrusive_ptr<c10d::Work> launch(Call call, const std::vector<at::Tensor>& inputs,
                                        std::vector<at::Tensor> outputs,
                                        const CallOptions& options);
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const;

  const std::shared_ptr<tccl::Communicator> communicator_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::chrono::milliseconds> timeout_;  // relaxed: guards nothing but itself
};

}  // namespace torch_ccl
