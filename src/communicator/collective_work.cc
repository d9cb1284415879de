#include "communicator/collective_work.h"

#include <utility>

#include "base/format.h"
#include "communicator/operation_queue_scopes.h"

namespace tccl {

CollectiveWork::CollectiveWork(std::shared_ptr<OperationQueue> queue, const Operation& operation,
                               Communicator::CallOptions options)
    : WorkState(std::move(options)),
      queue_(std::move(queue)),
      in_blocks_(operation.in_blocks.begin(), operation.in_blocks.end()),
      out_blocks_(operation.out_blocks.begin(), operation.out_blocks.end()),
      operation_(operation) {
  operation_.in_blocks = in_blocks_;
  operation_.out_blocks = out_blocks_;
}

CollectiveWork::CollectiveWork(std::shared_ptr<OperationQueue> queue, OperationList list,
                               Communicator::CallOptions options)
    : WorkState(std::move(options)), queue_(std::move(queue)), list_(std::move(list)) {}

void CollectiveWork::run_on(Executor& executor) const {
  if (is_posted_) return executor.complete_posted();
  list_ ? executor.run(*list_, timeout()) : executor.run(operation_, timeout());
}

void CollectiveWork::on_done_in_order(std::function<void()> callback) {
  on_done([queue = queue_, gate = queue_->add_gate(), callback = std::move(callback)] {
    const OperationQueue::CallbackScope scope(*queue, gate);
    callback();
  });
}

void CollectiveWork::on_done(std::function<void()> callback) {
  WorkState::on_done(std::move(callback));
  if (is_unfinished_post()) queue_->complete_on_pool(*this);
}

bool CollectiveWork::test() noexcept {
  if (is_unfinished_post()) queue_->complete_arrived();
  return done();
}

void CollectiveWork::on_completed() noexcept {
  queue_->unfinished_.fetch_sub(1, std::memory_order_release);  // pairs with is_idle()
}

void CollectiveWork::progress_until_done(Deadline deadline) {
  if (is_posted_ && queue_->complete_posted_until_done(*this, deadline)) return;
  queue_->run_queue_until_done(*this, deadline);
}

std::string CollectiveWork::description() const {
  return formatted("{} of group {}", list_ ? list_->name : name_of(operation_.op), queue_->group_);
}

}  // namespace tccl
