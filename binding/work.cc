#include "work.h"

#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "deferred_receives.h"
#include "errors.h"
#include "gil.h"
#include "interrupt.h"

namespace torch_ccl {
namespace {

int64_t count_elements(const SmallTensors& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

// Of the inputs, or of the outputs if there is no input, as for recv.
int64_t count_elements(const CollectiveRequest& request) {
  return count_elements(request.inputs().empty() ? request.outputs() : request.inputs());
}

// The constructor arguments of the base class that only a profiler needs. The base class copies the
// title; with a null title it adds no profiler row.
class ProfilerTitle {
 public:
  explicit ProfilerTitle(const CollectiveRequest& request) {
    if (at::hasCallbacks())
      title_ = c10::str(request.group().backend, ":", request.method().profiler_title);
  }
  [[nodiscard]] const char* c_str() const { return title_.empty() ? nullptr : title_.c_str(); }

 private:
  std::string title_;
};

std::optional<std::vector<at::Tensor>> profiler_inputs(const CollectiveRequest& request) {
  if (!at::hasCallbacks()) return std::nullopt;
  return std::vector<at::Tensor>(request.inputs().begin(), request.inputs().end());
}

void warn_callback_threw(const std::exception& error) noexcept {
  TORCH_WARN("ccl: a callback of a collective's Future threw: ", error.what());
}

void set_error_if_pending(c10::ivalue::Future& future, std::exception_ptr error) noexcept {
  try {
    future.setErrorIfNeeded(std::move(error));
  } catch (const std::exception& e) {
    warn_callback_threw(e);
  }
}

}  // namespace

WorkCCL::WorkCCL(const CollectiveRequest& request, uint64_t sequence,
                 const std::shared_ptr<tccl::Communicator>& communicator,
                 std::shared_ptr<PendingWorkCount> pending_work)
    : Work(-1, request.method().type, ProfilerTitle(request).c_str(), profiler_inputs(request)),
      method_(request.method()),
      outputs_(request.outputs()),
      element_count_(count_elements(request)),
      sequence_(sequence),
      is_staged_receive_(request.is_staged_receive()),
      stream_(request.output_stream()),
      communicator_(communicator),
      pending_work_(std::move(pending_work)) {}

WorkCCL::~WorkCCL() {
  if (state_ != State::running) return;
  // The operation was refused, so this Work was never returned; or it is a cancelled receive, or
  // nobody has waited for a posted operation.
  finish(exception_);
  if (is_counted_) pending_work_->remove();
}

// A receive whose Work was dropped (in a coalescing block that failed, for example) must neither
// match the next message nor fail the group at its timeout. Other operations continue.
void WorkCCL::release_resources() {
  if (operation_) operation_->cancel();
}

void WorkCCL::attach(const c10::intrusive_ptr<WorkCCL>& work,
                     const std::shared_ptr<tccl::Work>& operation,
                     std::shared_ptr<const CollectiveRequest> request) {
  {
    const std::lock_guard lock(work->mutex_);
    work->operation_ = operation;
    if (operation->is_posted() && work->can_be_completed_by_waiter(*request)) {
      work->posted_request_ = std::move(request);
      return;
    }
  }
  complete_by_callback(work, operation, std::move(request));
}

bool WorkCCL::can_be_completed_by_waiter(const CollectiveRequest& request) const {
  return !recordFunctionEndCallback_ && !pending_work_->hook() && !request.writes_results();
}

void WorkCCL::complete_by_waiter(const tccl::Work& operation) noexcept {
  std::shared_ptr<const CollectiveRequest>
      request;  // freed without the lock: that may take the GIL
  {
    const std::lock_guard lock(mutex_);
    request = std::exchange(posted_request_, nullptr);
  }
  if (request) complete(storable_error(to_torch_error(operation.error())));
}

void WorkCCL::complete_by_callback(const c10::intrusive_ptr<WorkCCL>& work,
                                   const std::shared_ptr<tccl::Work>& operation,
                                   std::shared_ptr<const CollectiveRequest> request) {
  work->is_counted_ = true;  // no other thread completes it
  work->pending_work_->add();
  // Operations other than receives hold their Work: they continue when the user drops it. That is a
  // reference cycle of operation, callback and Work, which complete() breaks.
  const bool is_receive =
      work->opType_ == c10d::OpType::RECV || work->opType_ == c10d::OpType::RECVANYSOURCE;
  operation->on_done([keepalive = is_receive ? nullptr : work,
                      weak_work = c10::weak_intrusive_ptr(work),
                      completed = operation.get(),  // alive while its callbacks run
                      request = std::move(request)] {
    const std::exception_ptr error = storable_error(to_torch_error(completed->error()));
    if (try_complete(weak_work, error, *request)) return;
    DeferredReceives::instance().add(
        [weak_work, request] { return try_complete(weak_work, nullptr, *request); });
  });
}

bool WorkCCL::try_complete(const c10::weak_intrusive_ptr<WorkCCL>& work, std::exception_ptr error,
                           const CollectiveRequest& request) noexcept {
  try {
    if (!error && !request.try_write_results()) return false;
  } catch (...) {
    error = storable_error(to_torch_error(std::current_exception()));
  }
  if (const auto locked = work.lock()) locked->complete(error);
  return true;
}

void WorkCCL::complete(const std::exception_ptr& error) noexcept {
  // Before a waiter can wake up: it may stop the profiler, which then frees the row. Without the
  // lock: this may take the GIL, and a thread that has the GIL may wait for the lock.
  if (const auto end_profiler_row = std::exchange(recordFunctionEndCallback_, nullptr))
    end_profiler_row();
  // Released after the lock, as is self_.
  std::shared_ptr<tccl::Work> operation;
  c10::intrusive_ptr<WorkCCL> self;
  FuturePtr future;
  {
    const std::lock_guard lock(mutex_);
    exception_ = error;
    end_time_ = std::chrono::steady_clock::now();
    operation = std::move(operation_);
    if (operation) source_ = operation->source();
    future = future_;
    state_ = future ? State::future_pending : State::notify_pending;
  }
  cv_.notify_all();
  finish(error);
  if (!future) return notify_and_finish();
  if (!is_staged_receive_) return;  // on_done_in_order() in getFuture() completes the Future
  complete_future(*future);
  const std::lock_guard lock(mutex_);
  self = std::move(self_);
}

void WorkCCL::complete_inline() noexcept {
  state_ = State::finished;
  end_time_ = std::chrono::steady_clock::now();
  if (recordFunctionEndCallback_) {
    finish(nullptr);
  } else {
    completed_ = true;
  }
  run_completion_hook();
}

// A Future is completed without a waiter.
void WorkCCL::complete_without_waiter() {
  std::shared_ptr<const CollectiveRequest> request;
  std::shared_ptr<tccl::Work> operation;
  {
    const std::lock_guard lock(mutex_);
    request = std::exchange(posted_request_, nullptr);
    operation = operation_;
  }
  if (request)
    complete_by_callback(c10::intrusive_ptr<WorkCCL>::reclaim_copy(this), operation,
                         std::move(request));
}

void WorkCCL::notify_and_finish() noexcept {
  FuturePtr result_future;
  {
    const std::lock_guard lock(mutex_);
    result_future = result_future_;
    state_ = State::finished;
  }
  if (result_future) complete_result_future(*result_future);
  run_completion_hook();
  if (is_counted_) pending_work_->remove();
}

void WorkCCL::run_completion_hook() const noexcept {
  const PendingWorkCount::Hook* hook = pending_work_->hook();
  if (!hook) return;
  try {
    (*hook)(std::make_shared<c10d::WorkInfo>(opType_, sequence_, work_info_time(start_time_),
                                             work_info_time(end_time_), end_time_ - start_time_));
  } catch (const std::exception& e) {
    TORCH_WARN("ccl: the group's completion hook threw: ", e.what());
  }
}

/// Completes the Work of a posted operation if that needs no waiting.
void WorkCCL::complete_if_arrived() noexcept {
  std::shared_ptr<tccl::Work> operation;
  {
    const std::lock_guard lock(mutex_);
    if (posted_request_) operation = operation_;
  }
  if (operation && operation->test()) complete_by_waiter(*operation);
}

bool WorkCCL::isSuccess() const {
  const_cast<WorkCCL*>(this)->complete_if_arrived();
  return Work::isSuccess();
}

std::exception_ptr WorkCCL::exception() const {
  const_cast<WorkCCL*>(this)->complete_if_arrived();
  return Work::exception();
}

bool WorkCCL::isCompleted() {
  complete_if_arrived();
  const std::lock_guard lock(mutex_);
  return state_ != State::running && (!future_ || future_->completed());
}

bool WorkCCL::wait(std::chrono::milliseconds timeout) {
  try {
    wait_for_completion(timeout);
  } catch (...) {
    throw_kept_interrupt();  // later calls must not raise it
    throw;
  }
  throw_kept_interrupt();
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

// Whether the operation succeeded or not. Throws if the wait timed out or was interrupted.
void WorkCCL::wait_for_completion(std::chrono::milliseconds timeout) {
  const ScopedGilRelease without_gil;  // torch calls synchronize() with the GIL
  at::RecordFunction profiler_row(at::RecordScope::FUNCTION);
  if (profiler_row.isActive())
    profiler_row.before(c10::str("pg::wait::", method_.name, "::sz:", element_count_));
  const auto deadline = timeout > kNoTimeout ? deadline_after(timeout) : Deadline::max();
  std::unique_lock lock(mutex_);
  if (const auto operation = operation_) {
    lock.unlock();
    wait_for_operation(*operation, deadline);
    complete_by_waiter(*operation);
    lock.lock();
    // The operation is complete, but its results may not be written to the tensors yet.
    if (!wait_until(lock, deadline, [this] { return state_ != State::running; }))
      throw_wait_timeout(timeout, "has not completed");
  }
  // Its callbacks may still run: one of them may be the caller.
  const auto future = future_;
  if (future && !wait_until(lock, deadline, [&] { return future->completed(); }))
    throw_wait_timeout(timeout, "has completed, but its Future has not");
}

// Returns when the operation has completed or failed; throws if the wait timed out or was
// interrupted.
void WorkCCL::wait_for_operation(tccl::Work& operation, Deadline deadline) {
  try {
    if (deadline != Deadline::max()) {
      operation.wait(tccl::time_left(deadline));
    } else {
      operation.wait();
    }
  } catch (const tccl::Error& error) {
    if (!operation.done()) throw_torch_error(error);
  } catch (...) {
    // An interrupt of this wait. One that has ended the operation is its error: see interrupt.h.
    if (std::current_exception() != operation.error()) throw;
  }
}

// Waits for a condition that cv_ announces; `lock` holds mutex_. False at the deadline; throws if the
// wait was interrupted.
template <class Condition>
bool WorkCCL::wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline,
                         const Condition& condition) {
  while (!cv_.wait_until(lock, std::min(deadline, Clock::now() + kInterruptInterval), condition)) {
    if (Clock::now() >= deadline) return false;
    lock.unlock();
    check_interrupt();
    lock.lock();
  }
  return true;
}

void WorkCCL::throw_wait_timeout(std::chrono::milliseconds timeout, const char* reason) const {
  throw_torch_error(
      {tccl::Errc::timeout, c10::str("wait() timed out after ", tccl::text_of(timeout), ": ",
                                     method_.name, " ", reason)});
}

void WorkCCL::abort() {
  if (const auto communicator = communicator_.lock())
    communicator->abort(c10::str("a Work of ", method_.name, " was aborted"));
}

int WorkCCL::sourceRank() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(source_ >= 0, "ccl: only a completed receive has a source rank, but this is ",
              method_.name);
  return source_;
}

float WorkCCL::getDuration() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(state_ != State::running, "ccl: ", method_.name,
              " has no duration before it has completed");
  return std::chrono::duration<float, std::milli>(end_time_ - start_time_).count();
}

// The Future's callbacks may start collectives (DDP's communication hooks do) while the caller
// starts others. on_done_in_order() inserts them at this point of the order, which is the same on
// all ranks.
c10::intrusive_ptr<c10::ivalue::Future> WorkCCL::getFuture() {
  complete_without_waiter();
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  std::vector<c10::Device> devices;
  if (stream_) devices.push_back(stream_->device());
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
  auto future = future_;
  // The first callback, so that it comes before the user's. `this` completes the Future.
  future->addCallback([this](c10::ivalue::Future&) {
    const std::lock_guard guard(mutex_);
    cv_.notify_all();
  });
  const auto operation = operation_;
  if (operation && is_staged_receive_) {  // complete() completes the Future
    self_ = c10::intrusive_ptr<WorkCCL>::reclaim_copy(this);
    return future;
  }
  lock.unlock();
  if (operation) {
    operation->on_done_in_order([work = c10::intrusive_ptr<WorkCCL>::reclaim_copy(this), future] {
      work->complete_future(*future);
    });
  } else {
    complete_future(*future);
  }
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkCCL::getFutureResult() {
  complete_without_waiter();
  std::unique_lock lock(mutex_);
  if (result_future_) return result_future_;
  auto future = result_future_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  const bool is_finished = state_ == State::finished;  // else notify_and_finish() completes it
  lock.unlock();
  if (is_finished) complete_result_future(*future);
  return future;
}

void WorkCCL::complete_future(c10::ivalue::Future& future) noexcept {
  std::exception_ptr error;
  bool finishes = false;
  {
    const ScopedGilRelease without_gil;
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [this] { return state_ != State::running; });  // until the results are written
    error = exception_;
    finishes = state_ == State::future_pending;
  }
  try {
    // A waiter of the Future synchronizes with the current stream. stream_ is idle, so the waiter
    // is not delayed; the device's default stream may be busy.
    const c10::OptionalStreamGuard guard(stream_);
    if (error) {
      future.setError(error);
    } else {
      future.markCompleted(c10::IValue(std::vector<at::Tensor>(outputs_.begin(), outputs_.end())));
    }
  } catch (const std::exception& e) {
    warn_callback_threw(e);
    // If the Future is not complete, the device failed, not a callback.
    set_error_if_pending(future, std::current_exception());
  }
  if (finishes) notify_and_finish();
}

void WorkCCL::complete_result_future(c10::ivalue::Future& future) const noexcept {
  try {
    future.markCompleted(c10::IValue(static_cast<int64_t>(work_result_of(exception()))));
  } catch (const std::exception& e) {
    warn_callback_threw(e);
  }
}

}  // namespace torch_ccl
