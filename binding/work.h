// The handle that torch.distributed returns for a collective.
//
// A call that ran inline hands out a WorkCCL that is complete; an asynchronous one hands out one
// that follows a tccl::Work. In both cases the steps at the end are: the outputs hold the result,
// the Work knows its outcome, its Future (if anyone asked for it) is marked, callbacks run. Thread
// safety: every method may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tccl/communicator.h"

namespace torch_ccl {

class WorkCCL final : public c10d::Work {
 public:
  /// `title` names the row in torch's profiler, which also shows the shapes of `inputs`.
  WorkCCL(c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
          std::vector<at::Tensor> outputs, uint64_t sequence);

  /// Makes `work` complete when `operation` is. If that succeeds, `finalize` runs first.
  static void follow(const c10::intrusive_ptr<WorkCCL>& work,
                     const std::shared_ptr<tccl::Work>& operation, std::function<void()> finalize);
  /// Called once, by whoever completed the operation.
  void complete(const std::exception_ptr& error) noexcept;

  bool isCompleted() override;
  /// Returns true or throws. A timeout of zero means the operation's own. If it runs out, only the
  /// wait fails: the operation goes on.
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return outputs_; }
  /// A Future of type List[Tensor] that holds the outputs.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  void await(tccl::Work& operation, std::chrono::milliseconds timeout);
  void mark(c10::ivalue::Future& future) const;

  const std::vector<at::Tensor> outputs_;
  const uint64_t sequence_;

  // Guarded by mutex_ of the base class, as is its exception_.
  bool outcome_known_ = false;
  std::shared_ptr<tccl::Work> operation_;           // until the outcome is known
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // made when asked for
};

}  // namespace torch_ccl
