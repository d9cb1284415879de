#include "coalesced_work.h"

#include <ATen/core/jit_type.h>

#include <algorithm>

#include "errors.h"
#include "polling.h"

namespace torch_ccl {

bool CoalescedWork::isCompleted() {
  return std::ranges::all_of(works_, [](const auto& work) { return work->isCompleted(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_)
    if (auto error = work->exception()) return error;
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  std::exception_ptr first_error;
  for (const auto& work : works_) {
    try {
      work->wait(timeout > kNoTimeout
                     ? std::max(tccl::time_left(deadline), std::chrono::milliseconds(1))
                     : kNoTimeout);
    } catch (...) {
      // The wait timed out or was interrupted.
      if (!work->isCompleted() || std::current_exception() != work->exception()) throw;
      if (!first_error) first_error = work->exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
  return true;
}

void CoalescedWork::abort() {
  for (const auto& work : works_) work->abort();
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const auto tensors = work->result();
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::ofTensors()));
  std::vector<c10::Device> devices;
  for (const auto& work : works_) {
    const auto future = work->getFuture();
    futures.push_back(future);
    for (const c10::Device device : future->devices())
      if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  }
  // Not the Future of collectAll(), nor one chained to it: those have no devices.
  auto all = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), devices);
  c10::collectAll(futures)->addCallback([all, futures, tensors = result()](c10::ivalue::Future&) {
    // collectAll() completes at the first error, so the loop must not wait before it has found it.
    for (const c10::intrusive_ptr<c10::ivalue::Future> future : futures)
      if (future->hasError()) return all->setError(future->exception_ptr());
    for (const c10::intrusive_ptr<c10::ivalue::Future> future : futures) future->wait();
    all->markCompleted(c10::IValue(tensors));
  });
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFutureResult() {
  return getFuture()->then(
      [](c10::ivalue::Future& future) {
        const auto error = future.hasError() ? future.exception_ptr() : nullptr;
        return c10::IValue(static_cast<int64_t>(work_result_of(error)));
      },
      c10::IntType::get());
}

float CoalescedWork::getDuration() const {
  float longest = 0;
  for (const auto& work : works_) longest = std::max(longest, work->getDuration());
  return longest;
}

uint64_t CoalescedWork::getSequencenumber() const {
  return works_.empty() ? 0 : works_.front()->getSequencenumber();
}

}  // namespace torch_ccl
