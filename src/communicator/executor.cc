#include "communicator/executor.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "algorithms/partition.h"
#include "algorithms/publish.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "communicator/validate.h"
#include "operation/buffers.h"
#include "operation/op_traits.h"
#include "tccl/error.h"

namespace tccl {
namespace {

/// A rank that has gone may have done its part: its last messages may still be under way, and ranks
/// of this host that have them may not have had a CPU yet.
constexpr std::chrono::milliseconds kLostRankGrace{250};

/// The index may come from another host.
const char* algorithm_name(std::uint8_t index) {
  return index < algorithms().size() ? algorithm(index).name : "unknown";
}

}  // namespace

Executor::Executor(ContextImpl& context, const GroupParts& parts)
    : context_(context),
      group_(*parts.local_group),
      membership_(*parts.membership),
      log_(group_.mine().log),
      sequence_(group_.identity().first_sequence - 1),
      digest_(group_.group_uid()),
      out_of_memory_(Errc::system,
                     formatted("rank {} ran out of memory in a collective of group {}",
                               membership_.rank(), membership_.name()),
                     {membership_.rank()}),
      board_(group_, context.heap(), algorithm_name,
             marking_interrupts(context.check_interrupt(), interrupted_), context.backoff()) {
  if (membership_.over_several_hosts()) make_channel(parts);
}

void Executor::make_channel(const GroupParts& parts) {
  ofi::Network& network = context_.network();
  channel_ = std::make_unique<ofi::OfiChannel>(
      network, membership_,
      ofi::OfiChannel::Options{parts.addresses, parts.group_tag, &log_, algorithm_name,
                               marking_interrupts(context_.check_interrupt(), interrupted_),
                               [this] { return find_lost_rank(); }});
  board_.set_other_hosts({.progress_network = [&network] { network.progress(); },
                          .find_lost_rank = [this] { return find_lost_rank(); }});
}

/// Whether the operation cannot complete on this rank without all others.
bool Executor::watches_every_rank(const OpRecord& record) const {
  return needs_every_rank(record.op) ||
         (only_root_receives(record.op) && record.root == membership_.rank());
}

/// The rank that ends the current operation, over all hosts. The last messages of a rank that has
/// gone may still arrive and complete the operation, so it has a little time.
std::optional<Error> Executor::find_lost_rank() {
  const OpRecord& record = log_.at(sequence_);
  if (!watches_every_rank(record)) return std::nullopt;
  std::optional<Error> lost = board_.find_lost_rank();
  if (!lost)
    // A rank that has died may have sent its part to the root before. One that has left tells which
    // operation was its last.
    if (const auto remote = membership_.find_lost_rank(
            sequence_,
            needs_every_rank(record.op) ? Membership::Losses::all : Membership::Losses::departures))
      lost = membership_.lost_error(*remote, board_.operation());
  if (!lost) return std::nullopt;
  if (!lost_since_) lost_since_ = Clock::now();
  return Clock::now() - *lost_since_ >= kLostRankGrace ? lost : std::nullopt;
}

/// Control connections report deaths. The operation opens them, too, but perhaps only after it has
/// waited for the ranks of this host.
void Executor::subscribe_to_rail() {
  if (std::exchange(subscribed_to_rail_, true)) return;
  const HostMap& hosts = membership_.host_map();
  const int own_host = hosts.host_of(membership_.rank());
  for (int host = 0; host < hosts.hosts(); ++host)
    if (host != own_host)
      membership_.subscribe(hosts.rail_peer(host, hosts.local_rank(membership_.rank())));
}

const Algorithm& Executor::select(const OpRecord& record) const {
  return context_.algorithms().select(record.op, record.count * size_of(record.dtype),
                                      membership_.size(), record.dtype, channel_ != nullptr);
}

void Executor::number_and_record(OpRecord& record, const Algorithm& algorithm) {
  record.algorithm = index_of(algorithm);
  record.sequence = ++sequence_;
  record.digest = digest_ = next_digest(digest_, record);
  // Peers see the record with the first post(). None of them can be so far behind that it still
  // reads the entry that this one replaces: see OperationLog.
  log_.append(record);
}

void Executor::run(const Operation& operation, Milliseconds timeout) {
  run_by(std::nullopt, operation, timeout);
}

void Executor::run_by(std::optional<Deadline> deadline, const Operation& operation,
                      Milliseconds timeout) {
  if (group_.failed()) throw membership_.fail(group_.failure());
  const CollectiveTask task(operation, context_.workers());
  OpRecord record = record_of(operation, membership_.size(), context_.settings().wire_format);
  const Algorithm& algorithm = select(record);
  number_and_record(record, algorithm);
  const bool traced = is_logged(LogLevel::trace);
  const Clock::time_point begin = traced ? Clock::now() : Clock::time_point();
  run_marking_failure([&] {
    board_.begin(record, deadline, timeout);
    channel_ ? run_over_hosts(algorithm, record, task, deadline, timeout)
             : algorithm.run(board_, task);
  });
  if (traced) log_operation(record, Clock::now() - begin);
}

template <class Body>
void Executor::run_marking_failure(const Body& body) {
  try {
    body();
    board_.end();
  } catch (const Error& error) {
    const Error reason = membership_.fail(error, board_.sequence());
    board_.fail();
    throw reason;
  } catch (...) {
    const bool was_interrupted = interrupted_;
    fail_by_current_exception();
    if (was_interrupted) throw InterruptedOperation(group_.failure(), std::current_exception());
    throw;
  }
}

bool Executor::can_post(const CollectiveTask& task, const Algorithm& algorithm) {
  if (channel_ || posted_count_ == kMaxPosted || !algorithm.run.has_phases() || group_.failed())
    return false;
  const std::size_t bytes = task.published_bytes(membership_.size());
  // One step, and not read in place: the ranks that publish in place wait for their readers.
  if (bytes >= kZeroCopyBytes || bytes > smallest_chunk(board_.chunk_bytes())) return false;
  for (std::size_t i = 0; i < posted_count_; ++i)
    if (may_conflict(task.operation(), *posted_[i].operation, membership_.size())) return false;
  return board_.can_open_step();
}

bool Executor::try_post(const Operation& operation, Milliseconds timeout) {
  const CollectiveTask task(operation, context_.workers());
  OpRecord record = record_of(operation, membership_.size(), context_.settings().wire_format);
  const Algorithm& algorithm = select(record);
  if (!can_post(task, algorithm)) return false;
  number_and_record(record, algorithm);
  Posted& posted = posted_[posted_count_];
  posted.operation = &operation;
  posted.algorithm = &algorithm;
  posted.begin = is_logged(LogLevel::trace) ? Clock::now() : Clock::time_point();
  board_.begin(record, std::nullopt, timeout);
  algorithm.run.run_phases(board_, task, {.contribute = true, .complete = false});
  posted.state = board_.suspend();
  ++posted_count_;
  return true;
}

bool Executor::posted_has_arrived() const {
  return posted_count_ != 0 && board_.has_arrived(posted_[0].state);
}

void Executor::complete_posted() {
  // What has arrived before the group failed is complete.
  const bool must_fail = group_.failed() && !posted_has_arrived();
  const Posted posted = posted_[0];
  std::shift_left(posted_.begin(), posted_.end(), 1);
  --posted_count_;
  if (must_fail) throw membership_.fail(group_.failure());
  const CollectiveTask task(*posted.operation, context_.workers());
  run_marking_failure([&] {
    board_.resume(posted.state);
    posted.algorithm->run.run_phases(board_, task, {.contribute = false, .complete = true});
  });
  if (posted.begin != Clock::time_point())
    log_operation(posted.state.record, Clock::now() - posted.begin);
}

void Executor::log_operation(const OpRecord& record, Clock::duration duration) const {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(duration);
  log(LogLevel::trace, {.rank = membership_.rank(), .group = membership_.name()},
      formatted("operation {}: {} took {} us", record.sequence,
                describe(record, algorithm_name(record.algorithm)), us.count()));
}

/// For an exception that is not an Error: an interrupt, or such as std::bad_alloc.
void Executor::fail_by_current_exception() noexcept {
  try {
    membership_.fail(error_of_current_exception(), board_.sequence());
  } catch (const std::bad_alloc&) {
    membership_.fail(out_of_memory_, board_.sequence());
  }
  board_.fail();
}

Error Executor::error_of_current_exception() {
  const int rank = membership_.rank();
  if (std::exchange(interrupted_, false))
    return {Errc::aborted,
            formatted("rank {} was interrupted in {}", rank, board_.operation()),
            {rank}};
  std::string reason;
  try {
    throw;
  } catch (const std::exception& error) {
    reason = formatted(": {}", error.what());
  } catch (...) {
  }
  return {
      Errc::system, formatted("rank {} failed in {}{}", rank, board_.operation(), reason), {rank}};
}

void Executor::run_over_hosts(const Algorithm& algorithm, const OpRecord& record,
                              const CollectiveTask& task, std::optional<Deadline> deadline,
                              Milliseconds timeout) {
  lost_since_.reset();
  if (watches_every_rank(record)) subscribe_to_rail();
  channel_->begin(record, deadline, timeout);
  algorithm.run_over_hosts(board_, *channel_, task);
  channel_->end();
  // From here on the progress thread polls the network until the last message has left.
  if (channel_->has_sends_in_flight()) context_.progress_thread().notify();
}

void Executor::run(const OperationList& list, Milliseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  const auto run = [&](const Operation& operation) {
    validate(operation, {membership_.rank(), membership_.size(), membership_.name(),
                         group_.layout().chunk_bytes});
    if (is_point_to_point(operation.op))
      throw Error(
          Errc::invalid_argument,
          formatted("an OperationList of group {} may run collectives only", membership_.name()));
    run_by(deadline, operation, timeout);
  };
  try {
    list.body(run);
  } catch (const Error& error) {
    membership_.fail(error);  // the other ranks wait for the rest of the list
    throw;
  } catch (const std::exception& error) {
    membership_.fail(Error(Errc::aborted,
                           formatted("{} of group {} failed on rank {}: {}", list.name,
                                     membership_.name(), membership_.rank(), error.what()),
                           {membership_.rank()}));
    throw;
  }
}

void Executor::close(Deadline deadline) noexcept {
  if (channel_) channel_->close(deadline);
}

}  // namespace tccl
