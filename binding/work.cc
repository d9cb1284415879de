#include "work.h"

#include <ATen/core/jit_type.h>

#include "errors.h"

namespace torch_ccl {

WorkCCL::WorkCCL(c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                 std::vector<at::Tensor> outputs, uint64_t sequence)
    : Work(-1, type, title, inputs), outputs_(std::move(outputs)), sequence_(sequence) {}

void WorkCCL::follow(const c10::intrusive_ptr<WorkCCL>& work,
                     const std::shared_ptr<tccl::Work>& operation, std::function<void()> finalize) {
  {
    const std::lock_guard lock(work->mutex_);
    work->operation_ = operation;
  }
  // `source` is alive in the callback: `work` holds it until complete() lets go, which is also what
  // ends the circle of operation, callback and work.
  operation->on_done([work, source = operation.get(), finalize = std::move(finalize)] {
    std::exception_ptr error = as_torch(source->error());
    if (!error) {
      try {
        finalize();
      } catch (...) {
        error = std::current_exception();
      }
    }
    work->complete(error);
  });
}

void WorkCCL::complete(const std::exception_ptr& error) noexcept {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::shared_ptr<tccl::Work> finished;  // let go of outside the lock
  {
    const std::lock_guard lock(mutex_);
    exception_ = error;
    outcome_known_ = true;
    future = future_;
    finished = std::move(operation_);
  }
  cv_.notify_all();
  if (future) {
    try {
      mark(*future);
    } catch (const std::exception& e) {  // from a callback; the operation itself is fine
      TORCH_WARN("ccl: a callback of a collective's Future threw: ", e.what());
    }
  }
  finish(error);  // last: whoever sees the base class's completion finds the Future marked
}

bool WorkCCL::isCompleted() {
  const std::lock_guard lock(mutex_);
  return outcome_known_ && (!future_ || future_->completed());
}

bool WorkCCL::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (const auto operation = operation_) {
    lock.unlock();
    await(*operation, timeout);
    lock.lock();
    cv_.wait(lock, [this] { return outcome_known_; });
  }
  const auto future = future_;
  const std::exception_ptr error = exception_;
  lock.unlock();
  // For the Future, not for finish(): a callback of the Future may itself call wait().
  if (future) future->wait();
  if (error) std::rethrow_exception(error);
  return true;
}

// Returns when the operation is complete, successful or not; throws if the wait itself ended.
void WorkCCL::await(tccl::Work& operation, std::chrono::milliseconds timeout) {
  try {
    if (timeout > kNoTimeout) {
      operation.wait(timeout);
    } else {
      operation.wait();
    }
  } catch (const tccl::Error& error) {
    if (!operation.done()) throw_as_torch(error);
  }
}

c10::intrusive_ptr<c10::ivalue::Future> WorkCCL::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    if (outcome_known_) mark(*future);  // nobody else has it yet, so no callback runs here
    future_ = std::move(future);
  }
  return future_;
}

void WorkCCL::mark(c10::ivalue::Future& future) const {
  if (exception_) {
    future.setError(exception_);
  } else {
    future.markCompleted(c10::IValue(outputs_));
  }
}

}  // namespace torch_ccl
