#include "cpu_backend.h"

#include <ATen/record_function.h>

#include "coalesced_work.h"
#include "context.h"
#include "errors.h"
#include "gil.h"
#include "interrupt.h"
#include "monitored_barrier.h"
#include "polling.h"
#include "work.h"

namespace torch_ccl {
namespace {

constexpr Method kBarrier{c10d::OpType::BARRIER, "barrier", "barrier"};

std::atomic<std::uint64_t> operations_started{0};  // relaxed: a statistic

// Runs a request on the calling thread. The common case allocates nothing: the request is
// moved to allocated memory only if it may outlive this call.
void run_inline(tccl::Communicator& communicator, CollectiveRequest& request,
                std::chrono::milliseconds timeout, std::uint32_t* sequence) {
  if (const tccl::Operation* operation = request.single_operation();
      operation && communicator.try_run(*operation, {.timeout = timeout, .sequence = sequence}))
    return void(request.try_write_results());
  const auto shared = std::make_shared<const CollectiveRequest>(std::move(request));
  if (const tccl::Operation* operation = shared->single_operation()) {
    communicator.run(*operation, {.timeout = timeout, .keepalive = shared, .sequence = sequence});
  } else {
    communicator.run(CollectiveRequest::operation_list(shared),
                     {.timeout = timeout, .keepalive = shared, .sequence = sequence});
  }
  shared->try_write_results();
}

std::shared_ptr<tccl::Work> start(tccl::Communicator& communicator,
                                  const std::shared_ptr<const CollectiveRequest>& request,
                                  std::chrono::milliseconds timeout, std::uint32_t* sequence) {
  if (const tccl::Operation* operation = request->single_operation())
    return communicator.start(*operation,
                              {.timeout = timeout, .keepalive = request, .sequence = sequence});
  return communicator.start(CollectiveRequest::operation_list(request),
                            {.timeout = timeout, .keepalive = request, .sequence = sequence});
}

/// Empty for the group of all ranks, and for a backend that ours replaces.
std::vector<int> global_ranks(const CpuBackend::Options& options) {
  return {options.global_ranks_in_group.begin(), options.global_ranks_in_group.end()};
}

/// Empty if the program asked for ours.
std::string replaced_backend(const CpuBackend::Options& options) {
  return options.backend == kBackendName ? "" : options.backend;
}

}  // namespace

CpuBackend::CpuBackend(const StorePtr& store, int rank, int size,
                       const c10::intrusive_ptr<Options>& options, const std::string& name)
    : CpuBackend(make_communicator(store, rank, size,
                                   {.name = name,
                                    .timeout = options->timeout,
                                    .serves = replaced_backend(*options),
                                    .ranks_in_parent = global_ranks(*options)},
                                   options->is_world),
                 options, name) {}

CpuBackend::CpuBackend(std::shared_ptr<tccl::Communicator> communicator,
                       c10::intrusive_ptr<Options> options, std::string name)
    : BackendBase(communicator->rank(), communicator->size()),
      options_(std::move(options)),
      group_{communicator->rank(), communicator->size(), std::move(name), options_->backend},
      communicator_(std::move(communicator)),
      staging_bytes_(context()->staging_bytes()),
      timeout_(options_->timeout) {
  init();
}

// Python holds the GIL when it drops the last reference. close() waits for operations whose
// callbacks may need the GIL.
CpuBackend::~CpuBackend() {
  const ScopedGilRelease without_gil;
  try {
    close();
  } catch (...) {
    report_unraisable("the release of a process group");
  }
}

// ---- how a request is run

CpuBackend::WorkPtr CpuBackend::run_request(CollectiveRequest request,
                                            std::chrono::milliseconds timeout, bool asynchronous) {
  if (request.is_staged()) prepare_staging(request, effective_timeout(timeout));
  request.arguments_checked();
  operations_started.fetch_add(1, std::memory_order_relaxed);
  at::RecordFunction profiler_row(at::RecordScope::FUNCTION);
  if (profiler_row.isActive()) {
    const std::vector<c10::IValue> inputs(request.inputs().begin(), request.inputs().end());
    profiler_row.before(c10::str("pg::", request.method().name), &inputs);
  }
  // Overwritten by that of a collective: messages and empty requests have no number of their own.
  std::uint32_t sequence = communicator_->next_sequence();
  auto work = c10::make_intrusive<WorkCCL>(request, sequence, communicator_, pending_work_);
  try {
    if (request.is_empty()) {
      work->complete_inline();
    } else if (asynchronous) {
      const auto shared = std::make_shared<const CollectiveRequest>(std::move(request));
      const auto operation = start(*communicator_, shared, effective_timeout(timeout), &sequence);
      work->set_sequence(sequence);
      WorkCCL::attach(work, operation, shared);
    } else {
      run_inline(*communicator_, request, effective_timeout(timeout), &sequence);
      work->set_sequence(sequence);
      work->complete_inline();
    }
  } catch (const tccl::Error& error) {
    group_.coalescing.discard();
    work->set_sequence(sequence);
    if (error.code() != tccl::Errc::invalid_argument)  // else nothing was started
      work->complete(to_torch_error(std::current_exception()));
    throw_kept_interrupt();  // of an earlier operation, which this thread has run first
    throw_torch_error(error);
  }
  // A synchronous call in a coalescing block has completed, too: the block may have been left open
  // by an exception in the body of torch's coalescing manager.
  group_.coalescing.add(work);
  return work;
}

CpuBackend::WorkPtr CpuBackend::run_point_to_point(CollectiveRequest request) {
  return run_request(std::move(request), c10d::kUnsetTimeout, /*asynchronous=*/true);
}

// Errors are those of run_request(). `run` returns false if it has done nothing.
template <class Run>
bool CpuBackend::try_run_unobserved(const Run& run) {
  if (pending_work_->hook() || group_.coalescing.is_open()) return false;
  try {
    if (!run(effective_timeout(c10d::kUnsetTimeout))) return false;
  } catch (const tccl::Error& error) {
    if (error.code() == tccl::Errc::invalid_argument) return false;
    operations_started.fetch_add(1, std::memory_order_relaxed);
    throw_kept_interrupt();
    throw_torch_error(error);
  } catch (...) {  // an interrupt
    operations_started.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
  operations_started.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool CpuBackend::try_run_plain(const tccl::Operation& operation) {
  return try_run_unobserved([&](std::chrono::milliseconds timeout) {
    return communicator_->try_run(operation, {.timeout = timeout});
  });
}

// As send() and then Work::wait(): an interrupt of the wait leaves the message to its own end, unless
// it can be cancelled.
bool CpuBackend::try_run_plain_message(const tccl::Operation& operation, const at::Tensor& tensor) {
  return try_run_unobserved([&](std::chrono::milliseconds timeout) {
    const auto work = communicator_->start(
        operation, {.timeout = timeout, .keepalive = std::make_shared<const at::Tensor>(tensor)});
    try {
      work->wait();
    } catch (...) {
      work->cancel();
      throw;
    }
    throw_kept_interrupt();
    return true;
  });
}

void CpuBackend::prepare_staging(CollectiveRequest& request,
                                 std::chrono::milliseconds timeout) const {
  // The reference is weak, because a request may outlive the group. close() waits for collectives
  // but not for receives, so those check is_closed(). Signals are checked less often than peers:
  // that takes the GIL.
  auto while_waiting = [group = std::weak_ptr(communicator_),
                        ends_at_close = request.is_staged_receive(),
                        operation = c10::str(request.method().name, " of group ", group_.name),
                        next_interrupt =
                            Clock::now() + kInterruptInterval](bool needs_peers) mutable {
    const auto communicator = group.lock();
    if (!communicator || (ends_at_close && communicator->is_closed()))
      throw tccl::Error(tccl::Errc::aborted, "the group was closed before the operation completed");
    if (needs_peers) {
      communicator->check_peers(operation);
    } else if (const std::exception_ptr error = communicator->error()) {
      std::rethrow_exception(error);
    }
    if (Clock::now() < next_interrupt) return;
    check_interrupt();
    next_interrupt = Clock::now() + kInterruptInterval;
  };
  try {
    request.prepare_staging(staging_bytes_, timeout, std::move(while_waiting));
  } catch (const tccl::Error& error) {
    throw_torch_error(error);
  }
}

CpuBackend::WorkPtr CpuBackend::endCoalescing() {
  return c10::make_intrusive<CoalescedWork>(group_.coalescing.end());
}

std::uint64_t CpuBackend::operation_count() noexcept {
  return operations_started.load(std::memory_order_relaxed);
}

// ---- timeouts

void CpuBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  timeout_.store(timeout, std::memory_order_relaxed);
}

std::chrono::milliseconds CpuBackend::effective_timeout(std::chrono::milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : timeout_.load(std::memory_order_relaxed);
}

// ---- barriers

CpuBackend::WorkPtr CpuBackend::barrier(const c10d::BarrierOptions& options) {
  CollectiveRequest request(kBarrier, group_);
  request.add(tccl::barrier());
  return run_request(std::move(request), options);
}

void CpuBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  // Unlike in other methods, zero is a timeout of its own here: it fails at once.
  const auto timeout =
      options.timeout == c10d::kUnsetTimeout ? effective_timeout(options.timeout) : options.timeout;
  operations_started.fetch_add(1, std::memory_order_relaxed);
  const auto sequence = monitored_barriers_.fetch_add(1, std::memory_order_relaxed);
  monitored_barrier(*communicator_, sequence, timeout, wait_all_ranks);
}

// ---- completion, errors, shutdown

void CpuBackend::registerOnCompletionHook(PendingWorkCount::Hook&& hook) {
  TORCH_CHECK(hook, "ccl: a completion hook must be callable");
  TORCH_CHECK(pending_work_->set_hook(std::move(hook)), "ccl: group ", group_.name,
              " already has a completion hook");
  // The base class uses it only in hasHooks(). It refers to the hook, which must not be copied.
  onCompletionHook_ = [pending_work = pending_work_](std::shared_ptr<c10d::WorkInfo> info) {
    (*pending_work->hook())(std::move(info));
  };
}

c10d::ErrorType CpuBackend::getError() {
  const std::exception_ptr error = communicator_->error();
  if (!error) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(error);
  } catch (const tccl::Error& e) {
    if (e.code() == tccl::Errc::timeout) return c10d::ErrorType::TIMEOUT;
    if (e.code() == tccl::Errc::peer_lost) return c10d::ErrorType::REMOTE_ERROR;
    return c10d::ErrorType::COMM_ERROR;
  }
}

void CpuBackend::shutdown() { close(); }

// The communicator's close() waits for started operations, too, but an interrupt could not end that
// wait.
void CpuBackend::close() {
  try {
    while (!communicator_->wait_until_idle(kInterruptInterval)) check_interrupt();
  } catch (...) {
    communicator_->abort("interrupted while it waited for operations, to leave the group");
    communicator_->close();
    throw;
  }
  communicator_->close();
}

// Works of posted operations are not counted, but keep the communicator busy.
void CpuBackend::waitForPendingWorks() {
  while (!communicator_->wait_until_idle(kInterruptInterval)) check_interrupt();
  pending_work_->wait_until_none();
}

void CpuBackend::abort() { communicator_->abort(/*reason=*/""); }

}  // namespace torch_ccl
