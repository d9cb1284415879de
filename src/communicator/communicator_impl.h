// CommunicatorImpl: the implementation of tccl::Communicator. It validates each call and passes
// collectives to the operation queue, send and recv to the point-to-point engine.
//
//   run(allreduce) -> OperationQueue -> Executor -> algorithm -> Board / NetworkChannel -> kernels
//   start(send)    -> P2p -> Link
//
// Building, splitting and shrinking groups: group_builder.h, split.h, shrink.h.
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "communicator/context_impl.h"
#include "communicator/executor.h"
#include "communicator/group_builder.h"
#include "communicator/operation_queue.h"
#include "communicator/p2p.h"
#include "communicator/shrink.h"
#include "tccl/communicator.h"

namespace tccl {

class CommunicatorImpl final : public Communicator {
 public:
  CommunicatorImpl(std::shared_ptr<ContextImpl> context, GroupParts parts, Options options);
  ~CommunicatorImpl() override;

  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return size_; }
  [[nodiscard]] const std::string& name() const noexcept override { return options_.name; }

  using Communicator::run;
  using Communicator::start;
  void run(const Operation& operation, const CallOptions& options) override;
  bool try_run(const Operation& operation, const CallOptions& options) override;
  std::shared_ptr<Work> start(const Operation& operation, CallOptions options) override;
  void run(OperationList list, const CallOptions& options) override;
  std::shared_ptr<Work> start(OperationList list, CallOptions options) override;
  std::shared_ptr<Communicator> split(int color, int key, Options options) override;
  std::shared_ptr<Communicator> shrink(std::vector<int> excluded, Options options) override;
  [[nodiscard]] std::uint32_t next_sequence() const noexcept override {
    return queue_->next_sequence();
  }
  [[nodiscard]] std::exception_ptr error() const noexcept override;
  void check_peers(const std::string& operation) const override;
  [[nodiscard]] bool is_closed() const noexcept override {
    return closed_.load(std::memory_order_relaxed);
  }
  void abort(const std::string& reason) noexcept override;
  bool wait_until_idle(Milliseconds timeout) const override;
  void close() noexcept override;
  [[nodiscard]] int hosts() const noexcept { return membership_.host_map().hosts(); }
  /// "rank 3 (host b, pid 4711)" if that rank has left or its process has ended, else an empty text.
  /// Throws the failure of the group if that is why the rank has left.
  [[nodiscard]] std::string ended_process(int rank) const;
  struct StalledRank {
    int rank;
    std::string process;  // "rank 3 (host b, pid 4711)"
  };
  /// Those of these ranks whose processes are stalled, not dead. Takes up to a second.
  [[nodiscard]] std::vector<StalledRank> stalled_ranks(std::span<const int> ranks) const;
  /// Called by Context::close(): closes the communicator, and aborts it first if operations are in
  /// flight. A process that exits with none does not disturb its peers.
  void depart() noexcept;

 private:
  /// Throws if this is a forked child or the group is closed. Describes the group in the log once.
  void begin_call();
  void describe_once();
  void fail_as_aborted(const std::string& text) noexcept;
  void throw_if_failed() const;
  void validate_call(const Operation& operation) const;
  void wait_or_withdraw(const std::shared_ptr<Work>& work);
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] Milliseconds effective(Milliseconds timeout) const;
  [[nodiscard]] std::unique_ptr<ofi::OfiP2p> make_ofi_p2p() const;

  std::shared_ptr<ContextImpl> context_;
  Options options_;
  GroupParts parts_;
  shm::LocalGroup& group_;  // of parts_
  Membership& membership_;  // of parts_
  int rank_;
  int size_;
  std::atomic<bool> has_to_describe_;   // in the log; relaxed: orders nothing
  std::unique_ptr<Executor> executor_;  // used by the queue alone
  std::shared_ptr<OperationQueue> queue_;
  std::shared_ptr<P2p> p2p_;
  mutable std::mutex mutex_;   // guards the next two
  bool has_departed_ = false;  // the group's memory may be freed
  std::exception_ptr final_error_;
  std::mutex shrink_mutex_;  // held during shrink(); guards the next
  ShrinkState shrink_state_;
  std::atomic<bool> closed_{false};  // relaxed: the queue and P2p check again under their locks
};

}  // namespace tccl
