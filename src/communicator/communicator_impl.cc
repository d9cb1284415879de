#include "communicator/communicator_impl.h"

#include <new>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "communicator/group_description.h"
#include "communicator/shrink.h"
#include "communicator/split.h"
#include "communicator/validate.h"
#include "operation/op_traits.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// Upper bound for sending the last messages to other hosts in close(). A live peer drains them in
/// milliseconds (its progress thread does), so a longer wait means that it has died or is stopped.
constexpr Milliseconds kCommunicatorFlushTimeout{10'000};

/// What ends a wait for an operation that runs on is an Error of the operation's own, a lack of
/// memory, or the exception of an interrupt.
std::string why_wait_ended(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Error& error) {
    return formatted("failed: {}", error.what());
  } catch (const std::bad_alloc&) {
    return "failed: out of memory";
  } catch (...) {
    return "was interrupted";
  }
}

}  // namespace

Communicator::~Communicator() = default;

std::shared_ptr<Communicator> Communicator::create(std::shared_ptr<Context> context, Store& store,
                                                   int rank, int size, Options options) {
  auto impl = std::static_pointer_cast<ContextImpl>(std::move(context));
  impl->check_usable();
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(Errc::invalid_argument, formatted("group {}: rank {} is not in a group of {} ranks",
                                                  options.name, rank, size));
  BuiltGroup built = build_group(*impl, store, rank, size, options);
  impl->on_group_built(*built.parts.membership, built.sharing);
  auto communicator =
      std::make_shared<CommunicatorImpl>(impl, std::move(built.parts), std::move(options));
  impl->add_communicator(communicator);
  return communicator;
}

void Communicator::report_failed_start(Store& store, int rank, int size, const Options& options,
                                       const std::string& reason) noexcept {
  tccl::report_failed_start(store, rank, size, options, reason);
}

CommunicatorImpl::CommunicatorImpl(std::shared_ptr<ContextImpl> context, GroupParts parts,
                                   Options options)
    : context_(std::move(context)),
      options_(std::move(options)),
      parts_(std::move(parts)),
      group_(*parts_.local_group),
      membership_(*parts_.membership),
      rank_(membership_.rank()),
      size_(membership_.size()),
      has_to_describe_(rank_ == 0 && is_logged(LogLevel::info)),
      executor_(std::make_unique<Executor>(*context_, parts_)),
      queue_(std::make_shared<OperationQueue>(context_->thread_pool(), options_.name, *executor_,
                                              options_.first_sequence, context_->check_interrupt(),
                                              context_->progress_thread())),
      p2p_(std::make_shared<P2p>(
          parts_.local_group, parts_.membership, make_ofi_p2p(), context_->settings().eager_bytes,
          context_->progress_thread(),
          [thread_pool = &context_->thread_pool()](std::function<void()> task) {
            thread_pool->submit(std::move(task));
          },
          context_->check_interrupt(), context_->backoff())) {
  context_->progress_thread().add(p2p_);
  context_->progress_thread().add(queue_);
}

std::unique_ptr<ofi::OfiP2p> CommunicatorImpl::make_ofi_p2p() const {
  if (!membership_.over_several_hosts()) return nullptr;
  return std::make_unique<ofi::OfiP2p>(context_->network(), membership_, parts_.addresses,
                                       parts_.group_tag);
}

CommunicatorImpl::~CommunicatorImpl() { close(); }

void CommunicatorImpl::validate_call(const Operation& operation) const {
  validate(operation, {rank_, size_, name(), group_.layout().chunk_bytes});
}

void CommunicatorImpl::begin_call() {
  context_->check_usable();
  if (closed_.load(std::memory_order_relaxed))
    throw Error(Errc::aborted, formatted("group {} is closed", name()));
  if (has_to_describe_.load(std::memory_order_relaxed)) [[unlikely]]
    describe_once();
}

void CommunicatorImpl::describe_once() {
  if (!has_to_describe_.exchange(false, std::memory_order_relaxed)) return;
  std::string text = describe_group(*context_, membership_);
  if (!options_.serves.empty()) text += formatted("; {} is served by torch-ccl", options_.serves);
  log(LogLevel::info, {.rank = rank_, .group = name()}, text);
}

void CommunicatorImpl::throw_if_failed() const {
  if (!group_.failed()) return;
  const std::lock_guard lock(mutex_);
  if (!has_departed_) throw group_.earlier_failure();
  if (final_error_) std::rethrow_exception(final_error_);
}

Milliseconds CommunicatorImpl::effective(Milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : options_.timeout;
}

void CommunicatorImpl::run(const Operation& operation, const CallOptions& options) {
  if (!try_run(operation, options)) wait_or_withdraw(start(operation, options));
}

bool CommunicatorImpl::try_run(const Operation& operation, const CallOptions& options) {
  if (is_point_to_point(operation.op)) return false;
  begin_call();
  validate_call(operation);
  throw_if_failed();
  return queue_->try_run(operation, effective(options.timeout), options.sequence);
}

std::shared_ptr<Work> CommunicatorImpl::start(const Operation& operation, CallOptions options) {
  begin_call();
  validate_call(operation);
  throw_if_failed();
  options.timeout = effective(options.timeout);
  if (is_point_to_point(operation.op)) {
    options.sequence = nullptr;
    return p2p_->start(operation, std::move(options));
  }
  return queue_->start(operation, std::move(options));
}

void CommunicatorImpl::run(OperationList list, const CallOptions& options) {
  begin_call();
  throw_if_failed();
  if (!queue_->try_run(list, effective(options.timeout), options.sequence))
    wait_or_withdraw(start(std::move(list), options));
}

std::shared_ptr<Work> CommunicatorImpl::start(OperationList list, CallOptions options) {
  begin_call();
  throw_if_failed();
  options.timeout = effective(options.timeout);
  return queue_->start(list, std::move(options));
}

/// If an interrupt or an error ends the wait before the operation is complete, this fails the
/// group: when run() returns, no thread may access the caller's memory any more.
void CommunicatorImpl::wait_or_withdraw(const std::shared_ptr<Work>& work) {
  std::exception_ptr problem;
  try {
    return work->wait();
  } catch (...) {
    if (work->done() || work->cancel()) throw;
    problem = std::current_exception();
  }
  const Error reason = membership_.fail(
      Error(Errc::aborted,
            formatted("rank {} of group {} {}", rank_, name(), why_wait_ended(problem)), {rank_}));
  if (!queue_->withdraw(*work, reason))
    while (!work->done()) std::this_thread::sleep_for(Milliseconds(1));
  std::rethrow_exception(problem);
}

std::shared_ptr<Communicator> CommunicatorImpl::split(int color, int key, Options options) {
  std::optional<GroupParts> parts = split_group(*context_, *this, parts_, color, key, options);
  if (!parts) return nullptr;
  auto communicator =
      std::make_shared<CommunicatorImpl>(context_, std::move(*parts), std::move(options));
  context_->add_communicator(communicator);
  return communicator;
}

std::shared_ptr<Communicator> CommunicatorImpl::shrink(std::vector<int> excluded, Options options) {
  context_->check_usable();
  const auto keep_open = [this] {
    std::unique_lock lock(mutex_);
    if (has_departed_) throw Error(Errc::aborted, formatted("group {} is closed", name()));
    return lock;
  };
  const std::lock_guard one_at_a_time(shrink_mutex_);
  GroupParts parts =
      shrink_group(*context_, parts_, shrink_state_, std::move(excluded), options, keep_open);
  auto communicator =
      std::make_shared<CommunicatorImpl>(context_, std::move(parts), std::move(options));
  context_->add_communicator(communicator);
  return communicator;
}

std::exception_ptr CommunicatorImpl::error() const noexcept {
  try {
    if (context_->forked())
      return std::make_exception_ptr(Error(Errc::aborted, "this process was forked from a rank"));
    const std::lock_guard lock(mutex_);
    if (has_departed_) return final_error_;
    return group_.failed() ? std::make_exception_ptr(group_.failure()) : nullptr;
  } catch (const std::bad_alloc&) {
    return std::current_exception();
  }
}

void CommunicatorImpl::check_peers(const std::string& operation) const {
  if (const std::exception_ptr problem = error()) std::rethrow_exception(problem);
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && membership_.state_of(rank) == PeerState::died)
      throw membership_.peer_lost_error(rank, operation);
}

std::string CommunicatorImpl::ended_process(int rank) const {
  const std::lock_guard lock(mutex_);  // else the group's memory may be freed meanwhile
  if (has_departed_ || rank < 0 || rank >= size_ || rank == rank_) return {};
  if (membership_.process_has_ended(rank)) return membership_.who(rank);
  if (membership_.state_of(rank) != PeerState::departed) return {};
  if (group_.failed()) throw group_.failure();  // that is why it has left
  // A process that ends leaves its groups first, and may take a second or more from there.
  return membership_.who(rank);
}

/// A rank of this host is watched until its heartbeat counter changes or it counts as stalled. How
/// long one of another host has been silent is known already.
std::vector<CommunicatorImpl::StalledRank> CommunicatorImpl::stalled_ranks(
    std::span<const int> ranks) const {
  struct Unknown {
    int rank;
    std::uint32_t first_count;
  };
  std::vector<Unknown> unknown;
  std::vector<StalledRank> stalled;
  const auto is_stalled = [&](const Unknown& each, Clock::duration watched) {
    const Clock::duration silence =
        membership_.is_local(each.rank) ? watched : membership_.process(each.rank)->silence();
    return silence >= membership_.stalled_after(each.rank);
  };
  const auto start = Clock::now();
  for (bool is_first = true; is_first || !unknown.empty(); is_first = false) {
    {
      const std::lock_guard lock(mutex_);  // as in ended_process()
      if (has_departed_) break;
      if (is_first)
        for (const int rank : ranks)
          if (rank >= 0 && rank < size_ && rank != rank_ &&
              membership_.state_of(rank) == PeerState::alive)
            unknown.push_back({rank, membership_.liveness_counter(rank)});
      std::erase_if(unknown, [&](const Unknown& each) {
        if (is_stalled(each, Clock::now() - start)) {
          stalled.push_back({each.rank, membership_.who(each.rank)});
          return true;
        }
        return !membership_.is_local(each.rank) ||
               membership_.liveness_counter(each.rank) != each.first_count ||
               membership_.state_of(each.rank) != PeerState::alive;
      });
    }
    if (!unknown.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return stalled;
}

void CommunicatorImpl::abort(const std::string& reason) noexcept {
  fail_as_aborted(formatted("rank {} called abort() on group {}{}{}", rank_, name(),
                            reason.empty() ? "" : ": ", reason));
}

void CommunicatorImpl::fail_as_aborted(const std::string& text) noexcept {
  if (context_->forked()) return;
  const std::lock_guard lock(mutex_);
  if (has_departed_) return;
  membership_.fail(Error(Errc::aborted, text, {rank_}));
}

bool CommunicatorImpl::is_idle() const {
  return closed_.load(std::memory_order_relaxed) || error() != nullptr ||
         (queue_->is_idle() && !p2p_->has_outstanding_sends());
}

bool CommunicatorImpl::wait_until_idle(Milliseconds timeout) const {
  // A signal handler cannot wait for the operation that it interrupts; close() deals with that.
  if (queue_->is_run_by_this_thread()) return true;
  const Deadline deadline = deadline_after(timeout);
  while (!is_idle()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}

void CommunicatorImpl::depart() noexcept {
  if (!queue_->is_idle() || p2p_->has_outstanding())
    fail_as_aborted(formatted("rank {} left group {} with operations in flight", rank_, name()));
  close();
}

void CommunicatorImpl::close() noexcept {
  if (context_->forked()) return;
  // A signal handler, for example, cannot wait for the operation that it interrupts.
  if (queue_->is_run_by_this_thread())
    return fail_as_aborted(formatted("rank {} closed group {} during an operation", rank_, name()));
  if (closed_.exchange(true, std::memory_order_relaxed)) return;
  queue_->close();
  p2p_->close(kCommunicatorFlushTimeout);
  executor_->close(deadline_after(kCommunicatorFlushTimeout));
  const Notice& departure = membership_.depart(executor_->last_sequence());
  if (membership_.over_several_hosts()) context_->record_departure(departure);
  const std::lock_guard lock(mutex_);
  parts_.secret.reset();
  if (group_.failed()) final_error_ = std::make_exception_ptr(group_.failure());
  has_departed_ = true;
  group_.close();
  context_->defer_free(parts_.local_group);
}

}  // namespace tccl
