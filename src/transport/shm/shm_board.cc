#include "transport/shm/shm_board.h"

#include <algorithm>
#include <span>

#include "base/format.h"
#include "base/log.h"
#include "operation/op_traits.h"

namespace tccl::shm {
namespace {

/// Added to the deadline of waits for a rank of this host that is not stalled, so that a rank that
/// waits for the network times out first (OfiChannel::check_wait): its error names the rank at fault.
constexpr std::chrono::milliseconds kGraceForOtherHosts{2000};

}  // namespace

ShmBoard::ShmBoard(LocalGroup& group, TensorHeap& heap, AlgorithmName algorithm_name,
                   std::function<void()> check_interrupt, BackoffPolicy backoff)
    : group_(group),
      heap_(heap),
      algorithm_name_(algorithm_name),
      check_interrupt_(std::move(check_interrupt)),
      views_(static_cast<std::size_t>(group.size())),
      heartbeats_(views_.size()),
      backoff_(backoff) {
  record_.sequence = group.identity().first_sequence - 1;
  for (PeerView& view : views_) view.matched = record_.sequence;
}

void ShmBoard::begin(const OpRecord& record, std::optional<Deadline> deadline,
                     std::chrono::milliseconds timeout) {
  record_ = record;
  begin_ = next_step_;
  steps_ = 0;
  first_step_ = 0;
  deadline_ = deadline;
  timeout_ = timeout;
  failed_since_.reset();
}

void ShmBoard::end() {
  if (any_read_) acknowledge_reads();
  if (any_published_) await_acknowledgements();
  peer_written_ = {};
}

bool ShmBoard::can_open_step() const {
  if (next_step_ < kSlots) return true;
  const GlobalStep step = step_that_frees_slot();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != local_rank() && !has_posted_matching(peer, step)) return false;
  return true;
}

/// Whether wait_for() would neither wait nor throw.
bool ShmBoard::has_posted_matching(int peer, GlobalStep step) const {
  if (views_[static_cast<std::size_t>(peer)].arrived_steps > step) return true;
  const StepHeader& mine = header_of(local_rank(), step);
  const StepHeader& theirs = header_of(peer, step);
  // Relaxed: this thread, or one that ran the queue before, stored it in post().
  const Position target = mine.position.load(std::memory_order_relaxed);
  // Acquire: pairs with post().
  return reached(theirs.position.load(std::memory_order_acquire), target) &&
         theirs.digest == mine.digest;
}

ShmBoard::Suspended ShmBoard::suspend() const { return {record_, begin_, steps_, timeout_}; }

void ShmBoard::resume(const Suspended& operation) {
  record_ = operation.record;
  begin_ = operation.begin;
  steps_ = operation.steps;
  first_step_ = 0;
  deadline_.reset();
  failed_since_.reset();
  timeout_ = operation.timeout;
}

bool ShmBoard::has_arrived(const Suspended& operation) const {
  const GlobalStep last = operation.begin + operation.steps - 1;
  const Position target = position_of(operation.record.sequence, operation.steps);
  for (int peer = 0; peer < size(); ++peer)
    // Relaxed: the operation is then resumed, and wait_for() acquires.
    if (peer != local_rank() && is_read_from(operation.record, peer) &&
        !reached(header_of(peer, last).position.load(std::memory_order_relaxed), target))
      return false;
  return true;
}

/// Whether this rank needs the data, or the arrival, of a peer to complete the operation.
bool ShmBoard::is_read_from(const OpRecord& record, int peer) const {
  if (only_root_sends(record.op)) return group_.global_rank(peer) == record.root;
  return record.op != Op::reduce || group_.global_rank(local_rank()) == record.root;
}

void ShmBoard::fail() noexcept {
  if (peer_written_.empty()) return;
  try {
    group_.keep_alive(heap_.unshare(peer_written_.data(), peer_written_.size()));
  } catch (const std::exception&) {
    log_warning("out of memory: late ranks may write to the tensor of a failed operation",
                group_.global_rank(local_rank()));
  }
  peer_written_ = {};
}

Board::Offset ShmBoard::publish_in_place(const void* memory, std::size_t bytes, int reader) {
  const Offset offset = offset_of(memory, bytes);
  if (offset == 0) return 0;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != local_rank() && (reader == kEveryone || reader == peer))
      views_[static_cast<std::size_t>(peer)].published_to = true;
  any_published_ = true;
  return offset;
}

const std::byte* ShmBoard::read_in_place(int peer, Offset offset) {
  views_[static_cast<std::size_t>(peer)].read_from = true;
  any_read_ = true;
  return at(peer, offset);
}

void ShmBoard::acknowledge_reads() {
  throw_if_any_rank_failed();
  group_.mine().acknowledged.store(end_of_operation(),
                                   std::memory_order_release);  // pairs with has_acknowledged()
  doorbell_fence();
  for (int peer = 0; peer < size(); ++peer) {
    PeerView& view = views_[static_cast<std::size_t>(peer)];
    if (view.read_from) notify_if_awaited(peer);
    view.read_from = false;
  }
  any_read_ = false;
}

/// A rank that fails is marked before it returns to its caller, who may then change the memory. So
/// a reader that finds no mark after reading has read valid data. A third rank may have set the
/// mark, so all regions are checked.
void ShmBoard::throw_if_any_rank_failed() const {
  std::atomic_thread_fence(std::memory_order_acquire);  // the reads come before the check of marks
  for (int rank = 0; rank < size(); ++rank)
    if (group_.is_marked_failed(rank)) throw group_.failure_of(rank);
}

void ShmBoard::await_acknowledgements() {
  awaits_acknowledgements_ = true;
  for (int peer = 0; peer < size(); ++peer) {
    PeerView& view = views_[static_cast<std::size_t>(peer)];
    if (!view.published_to) continue;
    const auto arrived = [&] { return has_acknowledged(peer); };
    if (!spin_then_yield(arrived, backoff_) && !sleep_until_arrived(peer, arrived))
      throw explain(peer, [&](int other) {
        return !views_[static_cast<std::size_t>(other)].published_to || has_acknowledged(other);
      });
    view.published_to = false;
  }
  any_published_ = false;
  awaits_acknowledgements_ = false;
}

bool ShmBoard::has_acknowledged(int peer) const {
  // Acquire: pairs with acknowledge_reads().
  return group_.region(peer).acknowledged.load(std::memory_order_acquire) >= end_of_operation();
}

Board::Slot ShmBoard::open_step() {
  const GlobalStep global_step = next_global_step();
  // This step reuses the slot of global_step - kSlots. A peer that has posted the second step after
  // that one has finished reading it, by the rules of board.h.
  static_assert(kSlots > 2);
  if (global_step >= kSlots)
    for (int peer = 0; peer < size(); ++peer)
      if (peer != local_rank()) wait_for(peer, step_that_frees_slot());
  std::byte* slot = group_.body(local_rank()) + group_.layout().slot_offset(global_step);
  return {group_.mine().step_headers[global_step % kSlots].inline_data, slot, slot + area_bytes()};
}

void ShmBoard::post() {
  StepHeader& header = group_.mine().step_headers[next_global_step() % kSlots];
  header.digest = record_.digest;
  ++steps_;
  ++next_step_;
  header.position.store(position_of(record_.sequence, steps_),
                        std::memory_order_release);  // pairs with wait_for()
  doorbell_fence();
  for (int peer = 0; peer < size(); ++peer)
    if (peer != local_rank()) notify_if_awaited(peer);
}

void ShmBoard::notify_if_awaited(int peer) {
  CollectiveDoorbell& doorbell = group_.region(peer).collective_doorbell;
  // Relaxed: the caller's doorbell_fence() pairs with the fence of sleep_until_arrived().
  if (doorbell.awaits.load(std::memory_order_relaxed) ==
      static_cast<std::uint32_t>(local_rank()) + 1)
    doorbell.notify();
}

Board::PeerSlot ShmBoard::await(int peer, std::uint32_t step) {
  const GlobalStep global_step = begin_ + first_step_ + step;
  wait_for(peer, global_step);
  const std::byte* slot = group_.body(peer) + group_.layout().slot_offset(global_step);
  return {header_of(peer, global_step).inline_data, slot, slot + area_bytes()};
}

double ShmBoard::factor(int local_rank) const {
  return group_.region(local_rank).log.at(record_.sequence).factor;
}

/// Waits until the peer has posted a step that this rank has posted. The peer cannot be so far
/// ahead that it overwrites the header: for that it needs a later step of this rank.
void ShmBoard::wait_for(int peer, GlobalStep global_step) {
  PeerView& view = views_[static_cast<std::size_t>(peer)];
  if (view.arrived_steps > global_step) return;
  const StepHeader& mine = header_of(local_rank(), global_step);
  const StepHeader& theirs = header_of(peer, global_step);
  // Relaxed: this thread stored it in post().
  const Position target = mine.position.load(std::memory_order_relaxed);
  const auto arrived = [&] {
    if (reached(theirs.position.load(std::memory_order_acquire), target))  // pairs with post()
      return true;
    if (other_hosts_.progress_network) other_hosts_.progress_network();
    return false;
  };
  if (!spin_then_yield(arrived, backoff_) && !sleep_until_arrived(peer, arrived))
    throw explain(peer, [&](int other) { return reached(position_seen(other), target); });
  if (theirs.digest != mine.digest) throw_mismatch(peer, common_sequence(peer));
  view.arrived_steps = global_step + 1;
}

bool ShmBoard::sleep_until_arrived(int peer, FunctionRef<bool()> arrived) {
  if (!deadline_) deadline_ = deadline_after(timeout_);
  for (HeartbeatWatcher& heartbeat : heartbeats_) heartbeat.reset();
  CollectiveDoorbell& doorbell = group_.mine().collective_doorbell;
  // Relaxed: sleep_until() has the fence that pairs with the one in post() and acknowledge_reads().
  doorbell.awaits.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_relaxed);
  struct ResetAwaits {
    CollectiveDoorbell& doorbell;
    // Relaxed: a peer that still sees the old value makes one needless system call.
    ~ResetAwaits() { doorbell.awaits.store(0, std::memory_order_relaxed); }
  } reset_awaits{doorbell};
  return sleep_until(doorbell, arrived, [&] { return must_give_up(peer); });
}

bool ShmBoard::must_give_up(int peer) {
  compare_logs(peer);
  const auto now = Clock::now();
  update_heartbeats(now);
  if (check_interrupt_ && now >= next_interrupt_check_) {
    next_interrupt_check_ = now + kInterruptInterval;
    check_interrupt_();
  }
  const bool is_stalled = heartbeats_[static_cast<std::size_t>(peer)].silence(now) >= kStalledAfter;
  const auto grace = other_hosts_.progress_network && !is_stalled ? kGraceForOtherHosts
                                                                  : std::chrono::milliseconds(0);
  if (group_.failed()) return !may_complete_after_failure(now);
  return lost_rank(peer) >= 0 ||
         (other_hosts_.find_lost_rank && !awaits_acknowledgements_ &&
          other_hosts_.find_lost_rank()) ||
         now >= *deadline_ + grace;
}

/// A rank of this host that is awaited may itself await messages of other hosts: see OfiChannel.
bool ShmBoard::may_complete_after_failure(Clock::time_point now) {
  if (!failed_since_) failed_since_ = now;
  return other_hosts_.progress_network && group_.failed_later_than(record_.sequence) &&
         now - *failed_since_ < kLaterFailureGrace;
}

/// The rank of this host without which the operation cannot complete, or -1; the awaited one first.
int ShmBoard::lost_rank(int peer) const {
  if (group_.state_of(peer) != PeerState::alive) return peer;
  if (awaits_acknowledgements_) return -1;  // this rank has the result; others may have left
  const bool is_root = group_.global_rank(local_rank()) == record_.root;
  if (only_root_sends(record_.op) && !is_root) return -1;
  for (int other = 0; other < size(); ++other)
    if (other != local_rank() && is_lost(other)) return other;
  return -1;
}

std::optional<Error> ShmBoard::find_lost_rank() const {
  for (int rank = 0; rank < size(); ++rank)
    if (rank != local_rank() && is_lost(rank)) return lost_error(rank);
  return std::nullopt;
}

/// A rank that has joined the operation and has gone may have completed its part. Of an operation
/// that needs every rank, it has not: this rank would have everything that it needs and would not
/// wait.
bool ShmBoard::is_lost(int rank) const {
  const PeerState state = group_.state_of(rank);  // first: what the rank posted before is then seen
  if (state == PeerState::alive) return false;
  return !has_joined(rank) || (state == PeerState::died && needs_every_rank(record_.op));
}

/// A peer that called a different operation may never post the step that this rank waits for.
void ShmBoard::compare_logs(int peer) {
  PeerView& view = views_[static_cast<std::size_t>(peer)];
  const std::uint32_t common = common_sequence(peer);
  if (common == view.matched) return;
  if (group_.region(peer).log.at(common).digest != group_.mine().log.at(common).digest)
    throw_mismatch(peer, common);
  view.matched = common;
}

/// The last operation that both ranks have begun.
std::uint32_t ShmBoard::common_sequence(int peer) const {
  const Position seen = position_seen(peer);
  return reached(seen, position_of(record_.sequence, 0)) ? record_.sequence
                                                         : static_cast<std::uint32_t>(seen >> 32);
}

void ShmBoard::update_heartbeats(Clock::time_point now) {
  for (int peer = 0; peer < size(); ++peer)
    heartbeats_[static_cast<std::size_t>(peer)].update(group_.liveness_counter(peer), now);
}

std::string ShmBoard::operation() const {
  return formatted("{} #{} of group {}", name_of(record_.op), record_.sequence,
                   group_.identity().name);
}

Position ShmBoard::position_seen(int peer) const {
  const StepHeader* headers = group_.region(peer).step_headers;
  Position latest = headers[0].position.load(std::memory_order_acquire);  // pairs with post()
  for (const StepHeader& header : std::span(headers, kSlots)) {
    const Position position = header.position.load(std::memory_order_acquire);  // pairs with post()
    if (reached(position, latest)) latest = position;
  }
  return latest;
}

}  // namespace tccl::shm
