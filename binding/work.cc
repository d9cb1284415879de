#include "work.h"

#include <ATen/core/jit_type.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "context.h"
#include "errors.h"
#include "gil.h"
#include "late_receives.h"

namespace torch_ccl {
namespace {

int64_t elements_in(const FewTensors& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

// A call that reads nothing, such as recv, is measured by what it writes.
int64_t elements_of(const Call& call) {
  return elements_in(call.inputs().empty() ? call.outputs() : call.inputs());
}

// The base class copies it. Null, which saves it a row of the profiler, if there is none.
class TitleForProfiler {
 public:
  explicit TitleForProfiler(const Call& call) {
    if (at::hasCallbacks()) title_ = c10::str(call.group().backend, ":", call.method().title);
  }
  [[nodiscard]] const char* c_str() const { return title_.empty() ? nullptr : title_.c_str(); }

 private:
  std::string title_;
};

// The base class looks at them only for a profiler.
std::optional<std::vector<at::Tensor>> tensors_for_profiler(const Call& call) {
  if (!at::hasCallbacks()) return std::nullopt;
  return std::vector<at::Tensor>(call.inputs().begin(), call.inputs().end());
}

void fail_quietly(c10::ivalue::Future& future, std::exception_ptr error) noexcept {
  try {
    future.setErrorIfNeeded(std::move(error));
  } catch (const std::exception& e) {
    TORCH_WARN("ccl: a callback of a collective's Future threw: ", e.what());
  }
}

c10d::WorkResult result_of(const std::exception_ptr& error) {
  if (!error) return c10d::WorkResult::SUCCESS;
  return is_timeout(error) ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
}

}  // namespace

WorkCCL::WorkCCL(const Call& call, uint64_t sequence,
                 const std::shared_ptr<tccl::Communicator>& communicator,
                 std::shared_ptr<Ledger> ledger)
    : Work(-1, call.method().type, TitleForProfiler(call).c_str(), tensors_for_profiler(call)),
      method_(call.method()),
      outputs_(call.outputs()),
      elements_(elements_of(call)),
      sequence_(sequence),
      stream_(call.output_stream()),
      communicator_(communicator),
      ledger_(std::move(ledger)) {
  ledger_->begin();
}

WorkCCL::~WorkCCL() {
  if (outcome_known_) return;
  // Its operation was refused and nobody has seen this Work, or it is a receive that was given up.
  finish(exception_);
  ledger_->end();
}

// A receive that nobody can wait for any more (a batch failed, say) must not take the next message,
// or fail the group when its time is up. Other operations are never given up.
void WorkCCL::release_resources() {
  if (operation_) operation_->cancel();
}

void WorkCCL::follow(const c10::intrusive_ptr<WorkCCL>& work,
                     const std::shared_ptr<tccl::Work>& operation,
                     std::shared_ptr<const Call> call) {
  {
    const std::lock_guard lock(work->mutex_);
    work->operation_ = operation;
    work->may_be_late_ = call->may_finish_late();
  }
  // Everything but a receive goes on also if nobody holds the Work. Until complete() lets go of the
  // operation, that makes a circle of operation, callback and work.
  const bool is_receive =
      work->opType_ == c10d::OpType::RECV || work->opType_ == c10d::OpType::RECVANYSOURCE;
  operation->on_done([held = is_receive ? nullptr : work, seen = c10::weak_intrusive_ptr(work),
                      source = operation.get(),  // alive while its callbacks run
                      call = std::move(call)] {
    if (try_settle(seen, as_torch(source->error()), *call)) return;
    LateReceives::instance().add([seen, call] { return try_settle(seen, nullptr, *call); });
  });
}

bool WorkCCL::try_settle(const c10::weak_intrusive_ptr<WorkCCL>& work, std::exception_ptr error,
                         const Call& call) noexcept {
  try {
    if (!error && !call.try_finish()) return false;
  } catch (...) {
    error = as_torch(std::current_exception());
  }
  if (const auto found = work.lock()) found->complete(error);
  return true;
}

void WorkCCL::complete(const std::exception_ptr& error) noexcept {
  std::shared_ptr<tccl::Work> finished;  // let go of outside the lock
  FuturePtr future;
  c10::intrusive_ptr<WorkCCL> self;  // the same
  {
    const std::lock_guard lock(mutex_);
    // Before anybody can see that it is complete: whoever waited may end the profiler, which then
    // frees the row.
    if (const auto end_row = std::exchange(recordFunctionEndCallback_, nullptr)) end_row();
    exception_ = error;
    outcome_known_ = true;
    finished_ = std::chrono::steady_clock::now();
    finished = std::move(operation_);
    if (finished) source_ = finished->source();
    future = future_;
    announcing_is_left_ = future != nullptr;
  }
  cv_.notify_all();
  finish(error);
  // After the Future: a hook or callback may wait for that.
  if (!future) return announce();
  if (!may_be_late_) return;
  mark(*future);
  const std::lock_guard lock(mutex_);
  self = std::move(self_);
}

void WorkCCL::complete_unseen() noexcept {
  outcome_known_ = result_announced_ = true;
  finished_ = std::chrono::steady_clock::now();
  if (recordFunctionEndCallback_) {
    finish(nullptr);
  } else {
    completed_ = true;
  }
  call_hook();
  ledger_->end();
}

void WorkCCL::announce() noexcept {
  FuturePtr future_result;
  {
    const std::lock_guard lock(mutex_);
    future_result = future_result_;
    result_announced_ = true;
  }
  if (future_result) mark_result(*future_result);
  call_hook();
  ledger_->end();
}

void WorkCCL::call_hook() const noexcept {
  const Ledger::Hook* hook = ledger_->hook();
  if (!hook) return;
  try {
    (*hook)(std::make_shared<c10d::WorkInfo>(opType_, sequence_, started_, finished_,
                                             finished_ - started_));
  } catch (const std::exception& e) {
    TORCH_WARN("ccl: the group's completion hook threw: ", e.what());
  }
}

bool WorkCCL::isCompleted() {
  const std::lock_guard lock(mutex_);
  return outcome_known_ && (!future_ || future_->completed());
}

bool WorkCCL::wait(std::chrono::milliseconds timeout) {
  const WithoutGil without_gil;  // torch's synchronize() holds it
  at::RecordFunction row(at::RecordScope::FUNCTION);
  if (row.isActive()) row.before(c10::str("pg::wait::", method_.name, "::sz:", elements_));
  const auto deadline = timeout > kNoTimeout ? deadline_after(timeout) : Clock::time_point::max();
  std::unique_lock lock(mutex_);
  if (const auto operation = operation_) {
    lock.unlock();
    await(*operation, deadline);
    lock.lock();
    await_outcome(lock, deadline);
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
void WorkCCL::await(tccl::Work& operation, Clock::time_point deadline) {
  try {
    if (deadline != Clock::time_point::max()) {
      operation.wait(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()));
    } else {
      operation.wait();
    }
  } catch (const tccl::Error& error) {
    if (!operation.done()) throw_as_torch(error);
  }
}

// The operation is complete, but its results may still be on their way to the tensors.
void WorkCCL::await_outcome(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  const auto is_known = [this] { return outcome_known_; };
  while (!cv_.wait_until(lock, std::min(deadline, Clock::now() + kInterruptPeriod), is_known)) {
    if (Clock::now() >= deadline)
      throw_as_torch(
          {tccl::Errc::timeout, c10::str("wait() gave up before ", method_.name, " was complete")});
    lock.unlock();
    poll_interrupt();
    lock.lock();
  }
}

void WorkCCL::abort() {
  if (const auto communicator = communicator_.lock())
    communicator->abort(c10::str("abort() was called on a Work of ", method_.name));
}

int WorkCCL::sourceRank() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(source_ >= 0, "ccl: only a completed receive has a source rank, not ", method_.name);
  return source_;
}

float WorkCCL::getDuration() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(outcome_known_, "ccl: ", method_.name, " has no duration before it is complete");
  return std::chrono::duration<float, std::milli>(finished_ - started_).count();
}

// Its callbacks may start collectives (DDP's communication hooks do), while the caller starts
// others: on_done_in_order() gives them the place of this call.
c10::intrusive_ptr<c10::ivalue::Future> WorkCCL::getFuture() {
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  std::vector<c10::Device> devices;
  if (stream_) devices.push_back(stream_->device());
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
  auto future = future_;
  const auto operation = operation_;
  if (operation && may_be_late_) {  // complete() marks it
    self_ = c10::intrusive_ptr<WorkCCL>::reclaim_copy(this);
    return future;
  }
  lock.unlock();
  if (operation) {
    operation->on_done_in_order(
        [work = c10::intrusive_ptr<WorkCCL>::reclaim_copy(this), future] { work->mark(*future); });
  } else {
    mark(*future);
  }
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkCCL::getFutureResult() {
  std::unique_lock lock(mutex_);
  if (future_result_) return future_result_;
  auto future = future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  const bool marks = result_announced_;  // else announce() will
  lock.unlock();
  if (marks) mark_result(*future);
  return future;
}

void WorkCCL::mark(c10::ivalue::Future& future) noexcept {
  std::exception_ptr error;
  bool announces = false;
  {
    const WithoutGil without_gil;
    std::unique_lock lock(mutex_);  // the results may still be on their way to the tensors
    cv_.wait(lock, [this] { return outcome_known_; });
    error = exception_;
    announces = std::exchange(announcing_is_left_, false);
  }
  try {
    // Whoever waits for the Future waits for what the current stream has been given by now: nothing
    // is left on this one, unlike on the device's usual one.
    const c10::OptionalStreamGuard on_stream(stream_);
    if (error) {
      future.setError(error);
    } else {
      future.markCompleted(c10::IValue(std::vector<at::Tensor>(outputs_.begin(), outputs_.end())));
    }
  } catch (const std::exception& e) {  // from a callback; the operation itself is fine
    TORCH_WARN("ccl: a callback of a collective's Future threw: ", e.what());
    fail_quietly(future, std::current_exception());  // unless it is complete: it was the device
  }
  if (announces) announce();
}

void WorkCCL::mark_result(c10::ivalue::Future& future) const noexcept {
  try {
    future.markCompleted(c10::IValue(static_cast<int64_t>(result_of(exception()))));
  } catch (const std::exception& e) {
    TORCH_WARN("ccl: a callback of a collective's Future threw: ", e.what());
  }
}

bool WorkBatch::isCompleted() {
  return std::ranges::all_of(works_, [](const auto& work) { return work->isCompleted(); });
}

std::exception_ptr WorkBatch::exception() const {
  for (const auto& work : works_)
    if (auto error = work->exception()) return error;
  return nullptr;
}

bool WorkBatch::wait(std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  std::exception_ptr first_error;
  for (const auto& work : works_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      work->wait(timeout > kNoTimeout ? std::max(left, std::chrono::milliseconds(1)) : kNoTimeout);
    } catch (...) {
      if (!work->isCompleted()) throw;  // the wait itself ended
      if (!first_error) first_error = work->exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
  return true;
}

void WorkBatch::abort() {
  for (const auto& work : works_) work->abort();
}

std::vector<at::Tensor> WorkBatch::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const auto part = work->result();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkBatch::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::ofTensors()));
  std::vector<c10::Device> devices;
  for (const auto& work : works_) {
    const auto future = work->getFuture();
    futures.push_back(future);
    for (const c10::Device device : future->devices())
      if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  }
  // A Future of its own: one that collectAll() makes knows no devices, nor does what follows it.
  auto all = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
  c10::collectAll(futures)->addCallback([all, futures, tensors = result()](c10::ivalue::Future&) {
    // It comes with the first error already. Nothing must wait here.
    for (const c10::intrusive_ptr<c10::ivalue::Future> future : futures)
      if (future->hasError()) return all->setError(future->exception_ptr());
    for (const c10::intrusive_ptr<c10::ivalue::Future> future : futures) future->wait();
    all->markCompleted(c10::IValue(tensors));
  });
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkBatch::getFutureResult() {
  return getFuture()->then(
      [](c10::ivalue::Future& future) {
        const auto error = future.hasError() ? future.exception_ptr() : nullptr;
        return c10::IValue(static_cast<int64_t>(result_of(error)));
      },
      c10::IntType::get());
}

float WorkBatch::getDuration() const {
  float longest = 0;
  for (const auto& work : works_) longest = std::max(longest, work->getDuration());
  return longest;
}

uint64_t WorkBatch::getSequencenumber() const {
  return works_.empty() ? 0 : works_.front()->getSequencenumber();
}

}  // namespace torch_ccl
