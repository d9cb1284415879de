// The handles that torch.distributed returns for a call, and for a batch of calls.
//
// A call that ran inline hands out a WorkCCL that is complete; an asynchronous one hands out one
// that follows a tccl::Work. In both cases the steps at the end are: the outputs hold the result,
// the Work knows its outcome, the group's completion hook runs; then its Future (if anyone asked
// for it) is marked, and callbacks run. Thread safety: every method may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "call.h"
#include "deadline.h"
#include "ledger.h"
#include "tccl/communicator.h"

namespace torch_ccl {

class WorkCCL final : public c10d::Work {
 public:
  WorkCCL(const Call& call, uint64_t sequence,
          const std::shared_ptr<tccl::Communicator>& communicator, std::shared_ptr<Ledger> ledger);
  ~WorkCCL() override;

  /// Makes `work` complete when `operation` is and `call` is finished.
  static void follow(const c10::intrusive_ptr<WorkCCL>& work,
                     const std::shared_ptr<tccl::Work>& operation,
                     std::shared_ptr<const Call> call);
  /// Called once, by whoever completed the operation.
  void complete(const std::exception_ptr& error) noexcept;
  /// The same, after success, for a Work that nobody else has seen: without locks.
  void complete_unseen() noexcept;

  /// c10 calls it when nobody holds the Work any more.
  void release_resources() override;

  bool isCompleted() override;
  /// Returns true or throws. A timeout of zero means the operation's own. If it runs out, only the
  /// wait fails: the operation goes on.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  /// The group is aborted with it: a collective cannot be taken back on one rank alone.
  void abort() override;
  std::vector<at::Tensor> result() override { return {outputs_.begin(), outputs_.end()}; }
  int sourceRank() const override;
  /// A Future of type List[Tensor] that holds the outputs.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// A Future of type int that holds a c10d::WorkResult and never an error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Milliseconds from the call to its completion.
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  /// False if it has to be tried again.
  static bool try_settle(const c10::weak_intrusive_ptr<WorkCCL>& work, std::exception_ptr error,
                         const Call& call) noexcept;
  void await(tccl::Work& operation, Clock::time_point deadline);
  void await_outcome(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  void mark(c10::ivalue::Future& future) noexcept;
  void mark_result(c10::ivalue::Future& future) const noexcept;
  void announce() noexcept;
  void call_hook() const noexcept;

  const Method& method_;
  const FewTensors outputs_;
  const int64_t elements_;  // for the profiler
  const uint64_t sequence_;
  const std::optional<c10::Stream> stream_;  // of the outputs, if they are an accelerator's
  const std::weak_ptr<tccl::Communicator> communicator_;
  const std::shared_ptr<Ledger> ledger_;
  const Time started_ = std::chrono::steady_clock::now();

  // Guarded by mutex_ of the base class, as is its exception_.
  bool outcome_known_ = false;
  bool may_be_late_ = false;  // its outcome may be known long after the operation is complete
  c10::intrusive_ptr<WorkCCL> self_;  // so that a Future keeps such a Work until then
  bool announcing_is_left_ = false;   // to whoever marks the Future
  bool result_announced_ = false;
  Time finished_;
  int source_ = -1;
  std::shared_ptr<tccl::Work> operation_;  // until the outcome is known
  FuturePtr future_;                       // made when asked for
  FuturePtr future_result_;
};

/// Several works as one: complete when all are; fails with the first error in order of issue.
class WorkBatch final : public c10d::Work {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  explicit WorkBatch(Works works) : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override { return !exception(); }
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  const Works works_;
};

}  // namespace torch_ccl
