// The Works of a coalescing block as one Work: complete when all are; fails with the first error in
// the order of the calls.
// Thread safety: every method may be called from any thread.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "coalescing_state.h"

namespace torch_ccl {

class CoalescedWork final : public c10d::Work {
 public:
  using Works = CoalescingState::Works;
  explicit CoalescedWork(Works works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override { return !exception(); }
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  /// The outputs of all Works, in order.
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// That of the longest Work.
  float getDuration() const override;
  /// That of the first Work.
  uint64_t getSequencenumber() const override;

 private:
  const Works works_;
};

}  // namespace torch_ccl
