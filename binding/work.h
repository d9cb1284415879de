// The handle that torch.distributed returns for one call.
//
// A call that ran inline returns a completed WorkCCL; an asynchronous one returns a WorkCCL that is
// attached to a tccl::Work. If the library has only posted the operation (tccl::Work::is_posted), no
// thread runs it: whoever calls wait() or isCompleted() completes both. Otherwise, and once somebody
// asks for a Future, a callback of the operation does. After the operation, these steps follow in
// this order:
//   1. The outputs hold the result; the Work has its outcome (exception_), and waiters wake up.
//   2. The Future, if getFuture() was called before step 1, is completed; its callbacks run.
//   3. The result Future (getFutureResult()) is completed, the group's completion hook runs, and
//      the Work is removed from the group's PendingWorkCount. So step 2 must wait for none of
//      these.
//
//   state           event                                      next state
//   --------------- ------------------------------------------ -----------------------
//   running         complete(), a Future exists                future_pending
//   running         complete(), no Future exists               notify_pending
//   running         complete_inline()                          finished, then step 3
//   future_pending  complete_future() has run the callbacks    finished, then step 3
//   notify_pending  complete() continues                       finished, then step 3
//
// Each step belongs to the thread that made the transition before it. A Future that is requested in
// notify_pending or finished is completed by getFuture() itself; a result Future that is requested
// in finished, by getFutureResult().
//
// Thread safety: every method may be called from any thread, unless it says otherwise.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "collective_request.h"
#include "pending_work_count.h"
#include "polling.h"
#include "tccl/communicator.h"
#include "torch_version.h"

namespace torch_ccl {

class WorkCCL final : public c10d::Work {
 public:
  WorkCCL(const CollectiveRequest& request, uint64_t sequence,
          const std::shared_ptr<tccl::Communicator>& communicator,
          std::shared_ptr<PendingWorkCount> pending_work);
  ~WorkCCL() override;

  /// Before the Work is attached or completed: no other thread has a reference.
  void set_sequence(uint64_t sequence) noexcept { sequence_ = sequence; }

  /// Completes `work` when `operation` is complete and the results of `request` are written; if that
  /// takes no thread, only when somebody waits or asks.
  static void attach(const c10::intrusive_ptr<WorkCCL>& work,
                     const std::shared_ptr<tccl::Work>& operation,
                     std::shared_ptr<const CollectiveRequest> request);
  /// Called once, by the thread that completed the operation.
  void complete(const std::exception_ptr& error) noexcept;
  /// The same after a success, by the thread that created the Work, before it is returned: no other
  /// thread has a reference, so it takes no lock.
  void complete_inline() noexcept;

  /// c10 calls it when the last strong reference is dropped.
  void release_resources() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Returns true or throws. A timeout of zero means the operation's own. At a shorter timeout only
  /// the wait fails: the operation continues, except that a receive that no message has matched is
  /// cancelled.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  /// Aborts the group: a collective cannot be cancelled on one rank alone.
  void abort() override;
  std::vector<at::Tensor> result() override { return {outputs_.begin(), outputs_.end()}; }
  int sourceRank() const override;
  /// A Future of type List[Tensor] with the outputs.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// A Future of type int with a c10d::WorkResult; it never has an error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Milliseconds from the call to its completion; of a posted operation, to the call that noticed it.
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  enum class State : unsigned char { running, future_pending, notify_pending, finished };

  static void complete_by_callback(const c10::intrusive_ptr<WorkCCL>& work,
                                   const std::shared_ptr<tccl::Work>& operation,
                                   std::shared_ptr<const CollectiveRequest> request);
  /// Whether nothing has to happen at completion but what a waiter can do.
  [[nodiscard]] bool can_be_completed_by_waiter(const CollectiveRequest& request) const;
  /// Completes the Work of a posted operation that is complete, unless that has been done.
  void complete_by_waiter(const tccl::Work& operation) noexcept;
  void complete_if_arrived() noexcept;
  void complete_without_waiter();
  /// Writes the results, then completes the Work. Returns false if it must be called again.
  static bool try_complete(const c10::weak_intrusive_ptr<WorkCCL>& work, std::exception_ptr error,
                           const CollectiveRequest& request) noexcept;
  void wait_for_completion(std::chrono::milliseconds timeout);
  void wait_for_operation(tccl::Work& operation, Deadline deadline);
  template <class Condition>
  [[nodiscard]] bool wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline,
                                const Condition& condition);
  [[noreturn]] void throw_wait_timeout(std::chrono::milliseconds timeout, const char* reason) const;
  void complete_future(c10::ivalue::Future& future) noexcept;
  void complete_result_future(c10::ivalue::Future& future) const noexcept;
  void notify_and_finish() noexcept;
  void run_completion_hook() const noexcept;

  const Method& method_;
  const SmallTensors outputs_;
  const int64_t element_count_;  // for the profiler
  uint64_t sequence_;
  const bool is_staged_receive_;  // results may be written long after the operation is complete
  const std::optional<c10::Stream> stream_;  // of the outputs, if they are an accelerator's
  const std::weak_ptr<tccl::Communicator> communicator_;
  const std::shared_ptr<PendingWorkCount> pending_work_;
  const Time start_time_ = std::chrono::steady_clock::now();

  // Guarded by mutex_ of the base class, as is its exception_.
  State state_ = State::running;
  Time end_time_;
  int source_ = -1;
  std::shared_ptr<tccl::Work> operation_;  // while running, if attached
  /// While the Work of a posted operation waits to be completed by a waiter.
  std::shared_ptr<const CollectiveRequest> posted_request_;
  bool is_counted_ = false;           // in pending_work_
  FuturePtr future_;                  // created by getFuture()
  FuturePtr result_future_;           // created by getFutureResult()
  c10::intrusive_ptr<WorkCCL> self_;  // keeps a staged receive with a Future alive while running
};

}  // namespace torch_ccl
