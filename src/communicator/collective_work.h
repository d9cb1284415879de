// CollectiveWork: the handle of a started collective, and its entry in the operation queue.
// Thread safety: as WorkState.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "communicator/work_state.h"
#include "tccl/communicator.h"

namespace tccl {

class Executor;
class OperationQueue;

/// A list of operations, or an operation together with copies of its block lists.
class CollectiveWork final : public WorkState {
 public:
  CollectiveWork(std::shared_ptr<OperationQueue> queue, const Operation& operation,
                 Communicator::CallOptions options);
  CollectiveWork(std::shared_ptr<OperationQueue> queue, OperationList list,
                 Communicator::CallOptions options);

  void on_done(std::function<void()> callback) override;
  void on_done_in_order(std::function<void()> callback) override;
  bool test() noexcept override;
  [[nodiscard]] bool is_posted() const noexcept override { return is_posted_; }
  void run_on(Executor& executor) const;
  [[nodiscard]] Milliseconds timeout() const noexcept { return options().timeout; }

 private:
  void on_completed() noexcept override;
  void progress_until_done(Deadline deadline) override;
  [[nodiscard]] bool is_unfinished_post() const noexcept {
    return is_posted_ && !done() && !is_in_forked_child();
  }
  [[nodiscard]] std::string description() const override;
  friend class OperationQueue;

  std::shared_ptr<OperationQueue> queue_;
  std::vector<ConstBlock> in_blocks_;
  std::vector<Block> out_blocks_;
  Operation operation_;
  std::optional<OperationList> list_;
  bool is_posted_ = false;  // written before another thread has the work
  /// Posted, and a pool thread completes it. Guarded by the queue's mutex.
  bool is_for_pool_ = false;
};

}  // namespace tccl
